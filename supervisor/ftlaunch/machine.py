"""(state, event) -> (state, actions): a total table. Pure.

Every pair stands here; `IGNORED` names those that change nothing, so that a forgotten pair is an error at
import and not a surprise at night. The form is skarnet/s6's.
"""

from __future__ import annotations

from ftlaunch.states import ENDS, Action, Event, State

Step = tuple[State, tuple[Action, ...]]

_SAVE_AND_STOP: Step = (State.LAST_GASP, (Action.SAVE_NEWEST,))

_TABLE: dict[State, dict[Event, Step]] = {
    State.READY: {
        Event.START: (State.RUNNING, (Action.SPAWN,)),
        Event.STOP: _SAVE_AND_STOP,  # an earlier life may have left snapshots in memory
        Event.HURRY: _SAVE_AND_STOP,
    },
    State.RUNNING: {
        Event.FAILURE_RETRY: (State.CLEARING, (Action.END_RANKS,)),
        Event.RANK_RETRY: (State.RUNNING, (Action.REPLACE_RANK,)),
        Event.FAILURE_FATAL: (State.ABANDONING, (Action.END_RANKS,)),
        Event.HANG: (State.EXAMINING, (Action.EXAMINE,)),
        Event.ALL_DONE: (State.WRAP_UP, (Action.SAVE_NEWEST,)),
        Event.STOP: (State.STOPPING, (Action.ANNOUNCE_STOP,)),
        Event.HURRY: (State.LEAVING, (Action.KILL_RANKS,)),
    },
    State.EXAMINING: {
        Event.FAILURE_RETRY: (State.CLEARING, (Action.END_RANKS,)),
        Event.RANK_RETRY: (State.RUNNING, (Action.REPLACE_RANK,)),
        Event.FAILURE_FATAL: (State.ABANDONING, (Action.END_RANKS,)),
        Event.STOP: (State.LEAVING, (Action.END_RANKS,)),
        Event.HURRY: (State.LEAVING, (Action.KILL_RANKS,)),
    },
    State.CLEARING: {
        Event.ALL_GONE: (State.BACKOFF, (Action.ARM_BACKOFF,)),
        Event.GRACE_OVER: (State.CLEARING, (Action.KILL_RANKS,)),
        Event.STOP: (State.LEAVING, ()),
        Event.HURRY: (State.LEAVING, (Action.KILL_RANKS,)),
    },
    State.ABANDONING: {
        Event.ALL_GONE: (State.SALVAGE, (Action.SAVE_NEWEST,)),
        Event.GRACE_OVER: (State.ABANDONING, (Action.KILL_RANKS,)),
        Event.HURRY: (State.ABANDONING, (Action.KILL_RANKS,)),
    },
    State.BACKOFF: {
        Event.BACKOFF_OVER: (State.RUNNING, (Action.SPAWN,)),
        Event.STOP: _SAVE_AND_STOP,
        Event.HURRY: _SAVE_AND_STOP,
    },
    State.STOPPING: {
        Event.ALL_DONE: (State.WRAP_UP, (Action.SAVE_NEWEST,)),  # the last step came before the announced one
        Event.ALL_GONE: _SAVE_AND_STOP,
        Event.GRACE_OVER: (State.STOPPING, (Action.KILL_RANKS,)),
        Event.HURRY: (State.LEAVING, (Action.KILL_RANKS,)),
    },
    State.LEAVING: {
        Event.ALL_GONE: _SAVE_AND_STOP,
        Event.GRACE_OVER: (State.LEAVING, (Action.KILL_RANKS,)),
        Event.HURRY: (State.LEAVING, (Action.KILL_RANKS,)),
    },
    State.LAST_GASP: {
        Event.SAVED: (State.STOPPED, (Action.FINISH,)),
        Event.SAVE_FAILED: (State.FAILED, (Action.FINISH,)),
    },
    State.SALVAGE: {
        Event.SAVED: (State.FAILED, (Action.FINISH,)),
        Event.SAVE_FAILED: (State.FAILED, (Action.FINISH,)),
    },
    State.WRAP_UP: {
        Event.SAVED: (State.DONE, (Action.FINISH,)),
        Event.SAVE_FAILED: (State.DONE, (Action.FINISH,)),  # the work is done: said loudly, not failed
    },
}

_E = Event
_SAVER_NEWS = {_E.SAVED, _E.SAVE_FAILED}  # of interval saves: the runner has journalled them already
_RANK_NEWS = {_E.FAILURE_RETRY, _E.RANK_RETRY, _E.FAILURE_FATAL, _E.HANG, _E.ALL_DONE}
_TIMERS = {_E.GRACE_OVER, _E.BACKOFF_OVER}

IGNORED: dict[State, set[Event]] = {
    State.READY: _SAVER_NEWS | _RANK_NEWS | _TIMERS | {_E.ALL_GONE},
    State.RUNNING: _SAVER_NEWS | _TIMERS | {_E.START, _E.ALL_GONE},
    State.EXAMINING: _SAVER_NEWS | _TIMERS | {_E.START, _E.HANG, _E.ALL_DONE, _E.ALL_GONE},
    State.CLEARING: _SAVER_NEWS | _RANK_NEWS | {_E.START, _E.BACKOFF_OVER},
    State.ABANDONING: _SAVER_NEWS | _RANK_NEWS | {_E.START, _E.BACKOFF_OVER, _E.STOP},
    State.BACKOFF: _SAVER_NEWS | _RANK_NEWS | {_E.START, _E.ALL_GONE, _E.GRACE_OVER},
    State.STOPPING: _SAVER_NEWS | (_RANK_NEWS - {_E.ALL_DONE}) | {_E.START, _E.STOP, _E.BACKOFF_OVER},
    State.LEAVING: _SAVER_NEWS | _RANK_NEWS | {_E.START, _E.STOP, _E.BACKOFF_OVER},
    State.LAST_GASP: _RANK_NEWS | _TIMERS | {_E.START, _E.ALL_GONE, _E.STOP, _E.HURRY},
    State.SALVAGE: _RANK_NEWS | _TIMERS | {_E.START, _E.ALL_GONE, _E.STOP, _E.HURRY},
    State.WRAP_UP: _RANK_NEWS | _TIMERS | {_E.START, _E.ALL_GONE, _E.STOP, _E.HURRY},
} | {end: set(Event) for end in ENDS}


def advance(state: State, event: Event) -> Step:
    """The next state and what to do; an ignored event leaves the state and does nothing."""
    if event in IGNORED[state]:
        return state, ()
    return _TABLE[state][event]


def _check_total() -> None:
    for state in State:
        named = set(_TABLE.get(state, ()))
        if named & IGNORED[state] or named | IGNORED[state] != set(Event):
            raise AssertionError(f"the state table is not total for {state}")


_check_total()
