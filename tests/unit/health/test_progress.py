"""What a job has reached, as far as its ranks say so."""

from __future__ import annotations

from tests.support.views import START, view

from ftlaunch.health.progress import AttemptProgress, Milestone, Progress, Resumption
from ftlaunch_contract.protocol import Resume


def test_an_adopted_attempt_has_reached_what_all_have_that_are_here() -> None:
    """Taken out: after the loss of the head's machine nobody knew how many steps that had cost."""
    job = Progress(-1, START)
    silent = view(rank=2, beating=False, attached=False, phase="startup", step=-1)
    AttemptProgress(job, 3, first=False).adopted([view(rank=0, step=31), view(rank=1, step=30), silent])
    after = AttemptProgress(job, 3, first=False)
    answer = (Resume.STORAGE, 25)
    [news] = after.observe([view(rank=rank, step=25, resumed=answer) for rank in range(3)], START + 60)
    assert isinstance(news, Resumption)
    assert news.lost == 5


def test_where_nobody_says_anything_nothing_is_known() -> None:
    job = Progress(-1, START)
    AttemptProgress(job, 1, first=False).adopted([view(beating=False, step=-1)])
    assert job.reached == -1


def test_new_steps_are_noted_often_at_first_and_each_minute_later() -> None:
    """A job of a minute has some notes of its losses; one of a month has one a minute, and some."""
    job = Progress(-1, START)
    attempt = AttemptProgress(job, 1, first=True)
    noted: list[float] = []
    for tenth in range(0, 40_000, 5):
        now = START + tenth / 10
        told = attempt.observe([view(rank=0, step=tenth, resumed=(Resume.FRESH, 0))], now)
        noted += [tenth / 10 for news in told if isinstance(news, Milestone)]
    assert 40 <= sum(when <= 60 for when in noted) <= 60
    assert noted[-1] - noted[-2] > 60
    assert len(noted) < 350
