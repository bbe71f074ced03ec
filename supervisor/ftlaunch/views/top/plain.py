"""The job as plain lines: what happens as it comes; a block where the state changes, else every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ftlaunch.views.top.job_watch import JobWatch
from ftlaunch.views.top.view import Picture, RankLayout, rank_rows, summary

_RANKS = 8  # the worst that are shown
_EVERY = 30.0  # seconds between blocks of a job whose state does not change


def follow(watch: JobWatch, say: Callable[[str], None]) -> str:
    """Tell of the job until it ends; returns how it ended. Raises OSError where the journal cannot be read."""
    lines = PlainLines()
    while True:
        picture = watch.look()
        for line in lines.of(picture, time.monotonic()):
            say(line)
        if picture.ended:
            return picture.ended
        time.sleep(watch.interval)


class PlainLines:
    """Chooses what is said of picture after picture."""

    def __init__(self) -> None:
        self._situation: object = None
        self._next = 0.0  # monotonic: when a block is due

    def of(self, picture: Picture, now: float) -> Iterator[str]:
        """What is said of a picture at a monotonic time; of one with the job's end only what has happened."""
        for news in picture.news:
            yield f"{news.at}Z {'! ' if news.grave else ''}{news.sentence}"
        situation = _situation(picture)
        if picture.ended or (situation == self._situation and now < self._next):
            return
        self._situation, self._next = situation, now + _EVERY
        yield "\n".join([*summary(picture), *_worst(picture), ""])


def _situation(picture: Picture) -> object:
    """What a block is told of at once when it changes; steps, phases and memory change all the time."""
    status = picture.status
    if status is None:
        return None, bool(picture.silence)
    living = sum(bool(rank["alive"]) for rank in status["ranks"])
    return status["state"], status["attempt"], living, len(status["ranks"]), len(picture.nodes)


def _worst(picture: Picture) -> Iterator[str]:
    rows = rank_rows(picture)
    layout = RankLayout(rows[:_RANKS], several=bool(picture.nodes), width=None)
    if rows:
        yield layout.head()
    yield from (layout.line(row) for row in rows[:_RANKS])
    if len(rows) > _RANKS:
        yield f"and {len(rows) - _RANKS} more"
