"""The state table: (state, event) -> (state, actions). The table is total. Pure.

Every pair of a state and an event is listed, either in `_TABLE` or in `IGNORED`, whose pairs change nothing. A
forgotten pair is therefore an error at import and not a surprise at night. The form is that of skarnet/s6.
"""

from __future__ import annotations

from ftlaunch.policy.states import ENDS, Action, Event, JobState

Step = tuple[JobState, tuple[Action, ...]]
"""The next state, and the actions in the order in which they are performed."""

_SAVE_AND_STOP: Step = (JobState.LAST_GASP, (Action.SAVE_NEWEST,))
_SALVAGE: Step = (JobState.SALVAGE, (Action.SAVE_NEWEST,))
_ABANDON: Step = (JobState.ABANDONING, (Action.END_RANKS,))
_SAVE_AND_GO_ON: Step = (JobState.KEEPING, (Action.SAVE_NEWEST,))

_TABLE: dict[JobState, dict[Event, Step]] = {
    JobState.READY: {
        Event.BROKEN: _SALVAGE,
        Event.START: (JobState.RUNNING, (Action.SPAWN,)),
        Event.ADOPT: (JobState.RUNNING, (Action.ADOPT,)),
        Event.REGROUP: _SAVE_AND_GO_ON,  # the newest step was made by other nodes than those that are here now
        Event.STOP: _SAVE_AND_STOP,  # a killed supervisor may have left snapshots in memory
        Event.HURRY: _SAVE_AND_STOP,
    },
    JobState.RUNNING: {
        Event.BROKEN: _ABANDON,
        Event.FAILURE_RETRY: (JobState.CLEARING, (Action.END_RANKS,)),
        Event.RANK_RETRY: (JobState.RUNNING, (Action.REPLACE_RANK,)),
        Event.FAILURE_FATAL: _ABANDON,
        Event.HANG: (JobState.EXAMINING, (Action.EXAMINE,)),
        Event.ALL_DONE: (JobState.WRAP_UP, (Action.SAVE_NEWEST,)),
        Event.PAUSE: (JobState.PAUSING, (Action.ANNOUNCE_STOP,)),
        Event.STOP: (JobState.STOPPING, (Action.ANNOUNCE_STOP,)),
        Event.HURRY: (JobState.LEAVING, (Action.KILL_RANKS,)),
    },
    JobState.EXAMINING: {
        Event.BROKEN: _ABANDON,
        Event.FAILURE_RETRY: (JobState.CLEARING, (Action.END_RANKS,)),
        Event.RANK_RETRY: (JobState.RUNNING, (Action.REPLACE_RANK,)),
        Event.FAILURE_FATAL: _ABANDON,
        Event.ALL_DONE: (JobState.WRAP_UP, (Action.SAVE_NEWEST,)),  # all ranks have ended well meanwhile
        Event.STOP: (JobState.LEAVING, (Action.END_RANKS,)),
        Event.HURRY: (JobState.LEAVING, (Action.KILL_RANKS,)),
    },
    JobState.CLEARING: {
        Event.BROKEN: _ABANDON,
        Event.ALL_GONE: (JobState.BACKOFF, (Action.ARM_BACKOFF,)),
        Event.GRACE_OVER: (JobState.CLEARING, (Action.KILL_RANKS,)),
        Event.STOP: (JobState.LEAVING, ()),
        Event.HURRY: (JobState.LEAVING, (Action.KILL_RANKS,)),
    },
    JobState.ABANDONING: {
        Event.BROKEN: (JobState.ABANDONING, (Action.KILL_RANKS,)),
        Event.ALL_GONE: _SALVAGE,
        Event.GRACE_OVER: (JobState.ABANDONING, (Action.KILL_RANKS,)),
        Event.HURRY: (JobState.ABANDONING, (Action.KILL_RANKS,)),
    },
    JobState.BACKOFF: {
        Event.BROKEN: _SALVAGE,
        Event.BACKOFF_OVER: (JobState.RUNNING, (Action.SPAWN,)),
        Event.REGROUP: _SAVE_AND_GO_ON,
        Event.STOP: _SAVE_AND_STOP,
        Event.HURRY: _SAVE_AND_STOP,
    },
    JobState.PAUSING: {
        Event.BROKEN: _ABANDON,
        Event.FAILURE_RETRY: (JobState.CLEARING, (Action.END_RANKS,)),
        Event.FAILURE_FATAL: _ABANDON,
        Event.ALL_DONE: (JobState.WRAP_UP, (Action.SAVE_NEWEST,)),  # the last step came before the announced one
        Event.ALL_GONE: _SAVE_AND_GO_ON,
        Event.GRACE_OVER: (JobState.PAUSING, (Action.KILL_RANKS,)),
        Event.STOP: (JobState.STOPPING, ()),  # the step to stop at is announced already
        Event.HURRY: (JobState.LEAVING, (Action.KILL_RANKS,)),
    },
    JobState.KEEPING: {
        Event.BROKEN: _SALVAGE,
        Event.SAVED: (JobState.BACKOFF, (Action.GO_ON,)),
        Event.SAVE_FAILED: (JobState.BACKOFF, (Action.GO_ON,)),
        Event.GRACE_OVER: (JobState.KEEPING, (Action.JUDGE_SAVE,)),
        Event.STOP: (JobState.LAST_GASP, (Action.LIMIT_SAVE,)),
        Event.HURRY: (JobState.LAST_GASP, (Action.HURRY_SAVE,)),
    },
    JobState.STOPPING: {
        Event.BROKEN: _ABANDON,
        Event.ALL_DONE: (JobState.WRAP_UP, (Action.SAVE_NEWEST,)),  # the last step came before the announced one
        Event.ALL_GONE: _SAVE_AND_STOP,
        Event.GRACE_OVER: (JobState.STOPPING, (Action.KILL_RANKS,)),
        Event.HURRY: (JobState.LEAVING, (Action.KILL_RANKS,)),
    },
    JobState.LEAVING: {
        Event.BROKEN: _ABANDON,
        Event.ALL_GONE: _SAVE_AND_STOP,
        Event.GRACE_OVER: (JobState.LEAVING, (Action.KILL_RANKS,)),
        Event.HURRY: (JobState.LEAVING, (Action.KILL_RANKS,)),
    },
    JobState.LAST_GASP: {
        Event.BROKEN: _SALVAGE,
        Event.HURRY: (JobState.LAST_GASP, (Action.HURRY_SAVE,)),
        Event.GRACE_OVER: (JobState.LAST_GASP, (Action.JUDGE_SAVE,)),
        Event.SAVED: (JobState.STOPPED, (Action.FINISH,)),
        Event.SAVE_FAILED: (JobState.FAILED, (Action.FINISH,)),
    },
    JobState.SALVAGE: {
        Event.BROKEN: _SALVAGE,
        Event.STOP: (JobState.SALVAGE, (Action.LIMIT_SAVE,)),
        Event.HURRY: (JobState.SALVAGE, (Action.HURRY_SAVE,)),
        Event.GRACE_OVER: (JobState.SALVAGE, (Action.JUDGE_SAVE,)),
        Event.SAVED: (JobState.FAILED, (Action.FINISH,)),
        Event.SAVE_FAILED: (JobState.FAILED, (Action.FINISH,)),
    },
    JobState.WRAP_UP: {
        Event.BROKEN: _SALVAGE,
        Event.STOP: (JobState.WRAP_UP, (Action.LIMIT_SAVE,)),
        Event.HURRY: (JobState.WRAP_UP, (Action.HURRY_SAVE,)),
        Event.GRACE_OVER: (JobState.WRAP_UP, (Action.JUDGE_SAVE,)),
        Event.SAVED: (JobState.DONE, (Action.FINISH,)),
        # The training is done: a save that failed is reported, but does not make the job a failed one.
        Event.SAVE_FAILED: (JobState.DONE, (Action.FINISH,)),
    },
}

_E = Event
_SAVER_NEWS = {_E.SAVED, _E.SAVE_FAILED}  # ignored for interval saves, which the journal has already
_RANK_NEWS = {_E.FAILURE_RETRY, _E.RANK_RETRY, _E.FAILURE_FATAL, _E.HANG, _E.ALL_DONE}
_BEGINNINGS = {_E.START, _E.ADOPT}
_NODES = {_E.PAUSE, _E.REGROUP}
_TIMERS = {_E.GRACE_OVER, _E.BACKOFF_OVER}

IGNORED: dict[JobState, set[Event]] = {
    JobState.READY: _SAVER_NEWS | _RANK_NEWS | _TIMERS | {_E.ALL_GONE, _E.PAUSE},
    JobState.RUNNING: _SAVER_NEWS | _TIMERS | _BEGINNINGS | {_E.ALL_GONE, _E.REGROUP},
    JobState.EXAMINING: _SAVER_NEWS | _TIMERS | _BEGINNINGS | _NODES | {_E.HANG, _E.ALL_GONE},
    JobState.CLEARING: _SAVER_NEWS | _RANK_NEWS | _BEGINNINGS | _NODES | {_E.BACKOFF_OVER},
    JobState.ABANDONING: _SAVER_NEWS | _RANK_NEWS | _BEGINNINGS | _NODES | {_E.BACKOFF_OVER, _E.STOP},
    JobState.BACKOFF: _SAVER_NEWS | _RANK_NEWS | _BEGINNINGS | {_E.ALL_GONE, _E.GRACE_OVER, _E.PAUSE},
    JobState.PAUSING: _SAVER_NEWS | _BEGINNINGS | _NODES | {_E.RANK_RETRY, _E.HANG, _E.BACKOFF_OVER},
    JobState.KEEPING: _RANK_NEWS | _BEGINNINGS | _NODES | {_E.ALL_GONE, _E.BACKOFF_OVER},
    JobState.STOPPING: _SAVER_NEWS | (_RANK_NEWS - {_E.ALL_DONE}) | _BEGINNINGS | _NODES | {_E.STOP, _E.BACKOFF_OVER},
    JobState.LEAVING: _SAVER_NEWS | _RANK_NEWS | _BEGINNINGS | _NODES | {_E.STOP, _E.BACKOFF_OVER},
    JobState.LAST_GASP: _RANK_NEWS | _BEGINNINGS | _NODES | {_E.ALL_GONE, _E.STOP, _E.BACKOFF_OVER},
    JobState.SALVAGE: _RANK_NEWS | _BEGINNINGS | _NODES | {_E.ALL_GONE, _E.BACKOFF_OVER},
    JobState.WRAP_UP: _RANK_NEWS | _BEGINNINGS | _NODES | {_E.ALL_GONE, _E.BACKOFF_OVER},
} | {end: set(Event) for end in ENDS}


def advance(state: JobState, event: Event) -> Step:
    """Return the next state and the actions; for an ignored event, the same state and no action."""
    if event in IGNORED[state]:
        return state, ()
    return _TABLE[state][event]


def _check_total() -> None:
    for state in JobState:
        named = set(_TABLE.get(state, ()))
        if named & IGNORED[state] or named | IGNORED[state] != set(Event):
            raise AssertionError(f"the state table is not total for {state}")


_check_total()
