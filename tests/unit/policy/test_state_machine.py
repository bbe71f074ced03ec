"""The state table: total, absorbing where it should be, and always on the way to an end."""

from __future__ import annotations

import pytest

from ftlaunch.policy.state_machine import IGNORED, advance
from ftlaunch.policy.states import ENDS, Action, Event, JobState

OPEN = [state for state in JobState if state not in ENDS]
PAIRS = [(state, event) for state in JobState for event in Event]


def reachable(begin: set[JobState]) -> set[JobState]:
    """Every state that events of any kind can lead to."""
    seen, todo = set(begin), list(begin)
    while todo:
        state = todo.pop()
        for event in Event:
            following = advance(state, event)[0]
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return seen


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_has_an_answer(state: JobState, event: Event) -> None:
    following, actions = advance(state, event)
    assert isinstance(following, JobState)
    assert all(isinstance(action, Action) for action in actions)
    if event in IGNORED[state]:
        assert (following, actions) == (state, ())


@pytest.mark.parametrize("state", [JobState.DONE, JobState.FAILED, JobState.STOPPED])
def test_an_end_is_an_end(state: JobState) -> None:
    assert all(advance(state, event) == (state, ()) for event in Event)


@pytest.mark.parametrize("state", OPEN)
def test_every_state_can_reach_an_end_and_is_reached(state: JobState) -> None:
    assert reachable({state}) & ENDS
    assert state in reachable({JobState.READY})


@pytest.mark.parametrize("state", OPEN)
@pytest.mark.parametrize("event", [Event.STOP, Event.HURRY])
def test_after_a_stop_nothing_is_started_and_the_end_comes(state: JobState, event: Event) -> None:
    after = reachable({advance(state, event)[0]})
    assert all(Action.SPAWN not in advance(s, e)[1] for s in after for e in Event)
    order: list[JobState] = []  # without turning on the spot there is no circle: every way is finite
    left = set(after)
    while left:
        final = [s for s in left if {advance(s, e)[0] for e in Event} - {s} <= set(order)]
        assert final, f"a circle among {left}"
        order += final
        left -= set(final)
    assert set(order) & ENDS


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_ranks_are_started_only_by_a_start_or_after_a_backoff(state: JobState, event: Event) -> None:
    following, actions = advance(state, event)
    if Action.SPAWN in actions:
        assert (state, event) in {(JobState.READY, Event.START), (JobState.BACKOFF, Event.BACKOFF_OVER)}
        assert following is JobState.RUNNING


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_finish_is_done_exactly_on_the_way_into_an_end(state: JobState, event: Event) -> None:
    following, actions = advance(state, event)
    assert (Action.FINISH in actions) == (following in ENDS and state not in ENDS)


S, E, A = JobState, Event, Action


@pytest.mark.parametrize(
    ("state", "event", "following", "actions"),
    [
        (S.READY, E.START, S.RUNNING, (A.SPAWN,)),
        (S.READY, E.STOP, S.LAST_GASP, (A.SAVE_NEWEST,)),
        (S.RUNNING, E.FAILURE_RETRY, S.CLEARING, (A.END_RANKS,)),
        (S.RUNNING, E.FAILURE_FATAL, S.ABANDONING, (A.END_RANKS,)),
        (S.RUNNING, E.HANG, S.EXAMINING, (A.EXAMINE,)),
        (S.RUNNING, E.ALL_DONE, S.WRAP_UP, (A.SAVE_NEWEST,)),
        (S.RUNNING, E.STOP, S.STOPPING, (A.ANNOUNCE_STOP,)),
        (S.EXAMINING, E.STOP, S.LEAVING, (A.END_RANKS,)),
        (S.EXAMINING, E.ALL_DONE, S.WRAP_UP, (A.SAVE_NEWEST,)),
        (S.CLEARING, E.ALL_GONE, S.BACKOFF, (A.ARM_BACKOFF,)),
        (S.CLEARING, E.GRACE_OVER, S.CLEARING, (A.KILL_RANKS,)),
        (S.ABANDONING, E.STOP, S.ABANDONING, ()),
        (S.BACKOFF, E.BACKOFF_OVER, S.RUNNING, (A.SPAWN,)),
        (S.BACKOFF, E.STOP, S.LAST_GASP, (A.SAVE_NEWEST,)),
        (S.STOPPING, E.GRACE_OVER, S.STOPPING, (A.KILL_RANKS,)),
        (S.STOPPING, E.FAILURE_RETRY, S.STOPPING, ()),
        (S.LAST_GASP, E.SAVED, S.STOPPED, (A.FINISH,)),
        (S.LAST_GASP, E.SAVE_FAILED, S.FAILED, (A.FINISH,)),
        (S.LAST_GASP, E.STOP, S.LAST_GASP, ()),
        (S.LAST_GASP, E.HURRY, S.LAST_GASP, (A.HURRY_SAVE,)),
        (S.LAST_GASP, E.GRACE_OVER, S.LAST_GASP, (A.JUDGE_SAVE,)),
        (S.WRAP_UP, E.STOP, S.WRAP_UP, (A.LIMIT_SAVE,)),
        (S.SALVAGE, E.SAVED, S.FAILED, (A.FINISH,)),
        (S.WRAP_UP, E.SAVE_FAILED, S.DONE, (A.FINISH,)),
    ],
)
def test_rows(state: JobState, event: Event, following: JobState, actions: tuple[Action, ...]) -> None:
    assert advance(state, event) == (following, actions)
