"""Simulates a job's life under random faults on a virtual clock, with the real state machine and policy. Pure.

The rest of the supervisor (starting ranks, seeing failures, saving) takes the times that a PlannedJob gives. The
simulation does not use the formulas of model.py: it is what they are checked against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ftlaunch.history.story import DETECTING, LOST, RESTARTING, STOPPING, USEFUL
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.policy.restart_policy import Backoff, Budget, RestartLimits, judge
from ftlaunch.policy.state_machine import advance
from ftlaunch.policy.states import ENDS, Action, Event, JobState
from ftlaunch.tools.planner.model import FailureKind, Intervals, PlannedJob
from ftlaunch.tools.planner.virtual_training import Training

SAVING = "saving"
_TRAINING = "training"
Random = Callable[[], float]


@dataclass(frozen=True)
class Scene:
    """What to simulate."""

    job: PlannedJob
    intervals: Intervals
    seconds: float  # wall time of a life
    limits: RestartLimits
    backoff: Backoff


@dataclass
class Life:
    """The result of a simulated life."""

    wall: float = 0.0  # seconds
    seconds: dict[str, float] = field(default_factory=dict)  # by what they were spent on; they add up to `wall`
    faults: dict[str, int] = field(default_factory=dict)  # number by kind
    restarts: int = 0
    stops: int = 0
    gave_up: str = ""  # sentence of the policy's verdict; empty if the job was not given up

    @property
    def effective(self) -> float:
        """Share of the wall time that was spent on steps that were never repeated."""
        return self.seconds[USEFUL] / self.wall


def simulate(scene: Scene, random: Random) -> Life:
    """Simulate one life.

    Args:
        scene: what to simulate.
        random: returns a new random number, uniform in [0, 1), on every call.
    """
    return _World(scene, random).live()


class _World:
    """The node, the ranks and the storage as the supervisor sees them, and the clock."""

    def __init__(self, scene: Scene, random: Random) -> None:
        self._scene = scene
        self._random = random
        self._job = scene.job
        self._life = Life(faults={kind.name: 0 for kind in scene.job.kinds})
        self._training = Training(scene.job, scene.intervals)
        self._now = 0.0
        self._state = JobState.READY
        self._budget = Budget(scene.limits)
        self._doing = RESTARTING  # what passing time is spent on
        self._spent = dict.fromkeys((_TRAINING, DETECTING, RESTARTING, STOPPING), 0.0)
        self._next: tuple[float, Event | None] = (
            math.inf,
            None,
        )  # time and event if nothing comes before; None: ranks train
        self._fault: FailureKind | None = None  # why ranks have died or hang
        self._memory = True  # whether the snapshots in memory exist
        self._restart = 0.0  # seconds of the start under way
        self._start_is = RESTARTING  # or STOPPING if the job starts again after a planned stop
        self._delay = 0.0  # seconds of backoff, by the policy's verdict
        self._started_at = 0  # snapshots made when training last began

    def live(self) -> Life:
        """Run until the time is over, or the policy gives up."""
        fault = self._draw(self._job.rate)
        stop = self._draw(self._job.stops)
        self._advance(Event.START)
        while not self._life.gave_up and self._now < self._scene.seconds:
            at = min(fault, stop, self._next[0], self._scene.seconds)
            self._spent[self._doing] += at - self._now
            self._now = at
            if at == self._next[0]:
                self._arrive(self._next[1])
            elif at == fault:
                fault = at + self._draw(self._job.rate)
                self._strike(self._draw_kind())
            elif at == stop:
                stop = at + self._draw(self._job.stops)
                self._life.stops += 1
                self._advance(Event.STOP)
        return self._close()

    def _close(self) -> Life:
        """Return the life, its time summed up by what it was spent on."""
        if self._doing == _TRAINING:
            self._training.pause(self._now)
        life = self._life
        intervals = self._scene.intervals
        made = self._training.made
        useful = made * intervals.work(self._job)
        saving = made * self._job.snapshot_stall + made // intervals.snapshots * self._job.checkpoint_stall
        life.wall = self._now
        life.seconds = {
            USEFUL: useful,
            SAVING: saving,
            DETECTING: self._spent[DETECTING],
            RESTARTING: self._spent[RESTARTING],
            LOST: self._spent[_TRAINING] - useful - saving,
            STOPPING: self._spent[STOPPING],
        }
        return life

    # --- faults ---------------------------------------------------------------------------------------

    def _draw(self, rate: float) -> float:
        """Draw the seconds to the next event of a Poisson process."""
        return -math.log1p(-self._random()) / rate if rate > 0 else math.inf

    def _draw_kind(self) -> FailureKind:
        left = self._random() * self._job.rate
        for kind in self._job.kinds:
            left -= kind.rate
            if left < 0:
                return kind
        return self._job.kinds[-1]

    def _strike(self, kind: FailureKind) -> None:
        """Let a failure happen now."""
        self._life.faults[kind.name] += 1
        trained = self._doing == _TRAINING
        if trained:
            self._training.pause(self._now)
        if not kind.from_memory:
            self._memory = False
            self._training.lose_writing(self._now)
        if self._state in (JobState.STOPPING, JobState.LAST_GASP):  # a lost snapshot cannot be saved
            if self._state is JobState.STOPPING or not self._memory:
                self._next = (self._now, Event.ALL_GONE if self._state is JobState.STOPPING else Event.SAVE_FAILED)
        elif trained or self._spawning():
            self._fault = kind
            self._doing = DETECTING
            self._next = (self._now + kind.detect, Event.HANG if kind.name == "hang" else Event.FAILURE_RETRY)
        elif not kind.from_memory:
            self._fault = kind  # noticed when the ranks are started again

    def _spawning(self) -> bool:
        return self._state is JobState.RUNNING and self._doing in (RESTARTING, STOPPING)

    # --- events and actions ---------------------------------------------------------------------------

    def _arrive(self, event: Event | None) -> None:
        self._next = (math.inf, None)
        if event is None:
            self._ready()
        elif event is Event.FAILURE_RETRY:
            self._rule()
        else:
            if event is Event.ALL_GONE and self._doing == _TRAINING:
                self._training.pause(self._now)
            self._advance(event)

    def _ready(self) -> None:
        """All ranks have restored their state, and train."""
        self._fault = None
        self._doing = _TRAINING
        self._training.resume(self._now, from_memory=self._memory)
        self._memory = True
        self._started_at = self._training.made

    def _rule(self) -> None:
        """Ask the policy for a verdict on the failure, and act on the verdict."""
        assert self._fault is not None
        name = self._fault.name
        made = self._training.made
        cause = Cause(name, 0, made, f"{name} failed", name)
        verdict = judge(
            cause, self._budget, self._scene.backoff, policy="on-failure", progressed=made > self._started_at,
            random=self._random(), now=self._now, step=made * self._scene.intervals.steps,
        )  # fmt: skip
        self._budget = verdict.budget
        self._delay = verdict.delay
        self._restart = self._fault.restart
        self._start_is = RESTARTING
        if verdict.restart:
            self._life.restarts += 1
            self._advance(Event.FAILURE_RETRY)
        else:
            self._life.gave_up = verdict.sentence
            self._advance(Event.FAILURE_FATAL)

    def _advance(self, event: Event) -> None:
        self._state, actions = advance(self._state, event)
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        if action is Action.EXAMINE:
            self._rule()  # the time of the autopsy is part of detecting
        elif action in (Action.END_RANKS, Action.KILL_RANKS):
            if self._doing == _TRAINING:
                self._training.pause(self._now)
            self._doing = RESTARTING
            self._next = (self._now, Event.ALL_GONE)
        elif action is Action.ARM_BACKOFF:
            self._next = (self._now + self._delay, Event.BACKOFF_OVER)
        elif action is Action.SPAWN:
            self._spawn()
        elif action is Action.ANNOUNCE_STOP:
            boundary = self._training.to_boundary(self._now) if self._doing == _TRAINING else 0.0
            self._next = (self._now + boundary, Event.ALL_GONE)
        elif action is Action.SAVE_NEWEST:
            self._doing = STOPPING
            saves = self._state is JobState.LAST_GASP and self._memory
            self._next = (self._now + self._job.write, Event.SAVED) if saves else (self._now, Event.SAVE_FAILED)
        elif action is Action.FINISH:
            self._finish()

    def _spawn(self) -> None:
        if self._fault is not None:  # the longest restart of the failures that happened meanwhile
            self._restart = max(self._restart, self._fault.restart)
        self._doing = self._start_is
        self._next = (self._now + self._restart, None)

    def _finish(self) -> None:
        """End the supervisor. After a planned stop the scheduler runs the same command again, on other nodes."""
        assert self._state in ENDS
        if self._life.gave_up:
            return
        if self._memory:
            self._training.save_newest()
        self._memory = False
        self._state = JobState.READY
        self._budget = Budget(self._scene.limits)
        self._fault = None
        self._restart = max(self._job.stop_cost - self._job.write, 0.0)
        self._start_is = STOPPING
        self._advance(Event.START)


def lives(scene: Scene, random: Random, count: int) -> Iterator[Life]:
    """Simulate `count` lives, one after the other."""
    for _ in range(count):
        yield simulate(scene, random)
