"""The vocabulary of the state machine: states, events, actions. Pure.

`state_machine` says which event leads from which state to which; `engine/supervisor.py` performs the actions.
"""

from __future__ import annotations

import enum


class JobState(enum.Enum):
    """The state of a job."""

    READY = "ready"  # nothing started yet
    RUNNING = "running"  # ranks are alive and watched
    EXAMINING = "examining"  # a hang was seen: the stacks of all ranks are being taken
    CLEARING = "clearing"  # the attempt failed: its ranks are being ended, another attempt follows
    ABANDONING = "abandoning"  # the attempt failed for good: its ranks are being ended
    BACKOFF = "backoff"  # waiting before the next attempt
    PAUSING = "pausing"  # its nodes are to change: ranks go on to the announced step and leave
    KEEPING = "keeping"  # its nodes change before the next attempt: the saver commits the newest step
    STOPPING = "stopping"  # told to stop: ranks go on to the announced step and leave
    LEAVING = "leaving"  # told to stop while ranks were being ended anyway
    LAST_GASP = "last gasp"  # stopped, ranks gone: the saver commits the newest step
    SALVAGE = "salvage"  # given up, ranks gone: the saver commits the newest step
    WRAP_UP = "wrap up"  # all ranks done: the saver finishes
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


ENDS = frozenset({JobState.DONE, JobState.FAILED, JobState.STOPPED})
"""states that a job does not leave"""


class Event(enum.Enum):
    """What happens to the job."""

    START = "start"
    ADOPT = "a head that has died has left a running attempt"
    FAILURE_RETRY = "failure, to be retried"  # a rank failed (or could not be started), policy says: again
    RANK_RETRY = "failure of one rank, to be retried alone"  # restart_scope: rank
    FAILURE_FATAL = "failure, for good"  # a rank failed (or could not be started), policy says: give up
    HANG = "hang"
    ALL_DONE = "all ranks done"  # every rank ended with exit code 0, after its training loop was over
    ALL_GONE = "all ranks gone"  # no process of the attempt is left
    PAUSE = "other nodes are asked for"  # a node is to leave, or to be taken in, while ranks run
    REGROUP = "the next attempt has other nodes"
    STOP = "stop"  # somebody asked to stop
    HURRY = "hurry"  # somebody asked again, and means now (a second Ctrl-C)
    GRACE_OVER = "grace over"
    BACKOFF_OVER = "backoff over"
    SAVED = "saved"  # the saver has nothing left to do
    SAVE_FAILED = "save failed"
    BROKEN = "an error of the supervisor's own"  # the job is ended in good order


class Action(enum.Enum):
    """What the supervisor does about it."""

    SPAWN = "start an attempt"
    ADOPT = "take up the running attempt"
    REPLACE_RANK = "end the rank that failed, and start it again after its delay"
    EXAMINE = "take the stacks of all ranks"
    END_RANKS = "tell all ranks to leave; SIGKILL after the grace"
    ANNOUNCE_STOP = "announce the step to stop at"
    KILL_RANKS = "SIGKILL every process of the attempt"
    ARM_BACKOFF = "wait before the next attempt"
    SAVE_NEWEST = "let the saver commit the newest step all ranks have in memory"
    LIMIT_SAVE = "wait for storage no longer than the grace without a sign of work"
    HURRY_SAVE = "wait for storage no longer than a moment without a sign of work"
    GO_ON = "let the nodes change, and begin the next attempt once they are there"
    JUDGE_SAVE = "wait on where the saver works, else leave the step in memory"
    FINISH = "end the job"
