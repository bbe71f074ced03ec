"""Computes how long training takes under failures, and the intervals that make the time shortest. Pure.

Two layers. A snapshot in memory survives failures of processes, and is lost with its node; a checkpoint on storage
survives all. Failures come at a constant rate (exponential gaps), at any time, restarts included.

J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_MAX_INTERVAL_SECONDS = 3650 * 86400.0  # no interval is longer
_MAX_EXPONENT = 700.0  # e to this power is about the largest float; beyond it the job never ends
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class FailureKind:
    """One kind of failure. Times are seconds."""

    name: str
    rate: float  # failures per second of the whole job
    detect: float  # from the failure to the supervisor's reaction
    restart: float  # from the reaction until training goes on with its state restored
    from_memory: bool  # whether snapshots in memory survive the failure


@dataclass(frozen=True)
class PlannedJob:
    """The job to plan for. Times are seconds."""

    step: float  # length of a step without saving
    snapshot_stall: float  # how long training waits for a snapshot
    checkpoint_stall: float  # additional wait for a snapshot that becomes a checkpoint
    write: float  # from the begin of a checkpoint until its commit, while training goes on
    kinds: tuple[FailureKind, ...]
    stops: float = 0.0  # planned stops per second; each is a stop, a save and a new start
    stop_cost: float = 0.0  # length of a planned stop
    least_steps: int = 1  # least number of steps between snapshots, so that each can be copied to another node

    @property
    def rate(self) -> float:
        """Failures per second, of all kinds."""
        return math.fsum(kind.rate for kind in self.kinds)

    def rate_of(self, from_memory: bool) -> float:
        """Return the failures per second that snapshots survive (`from_memory`), or do not survive."""
        return math.fsum(kind.rate for kind in self.kinds if kind.from_memory is from_memory)


@dataclass(frozen=True)
class Intervals:
    """When to save. Every checkpoint is a snapshot, so a checkpoint comes after a whole number of snapshots."""

    steps: int  # from one snapshot to the next
    snapshots: int  # from one checkpoint to the next

    def work(self, job: PlannedJob) -> float:
        """Return the seconds of training between snapshots."""
        return self.steps * job.step

    def storage_seconds(self, job: PlannedJob) -> float:
        """Return the seconds between the begins of two checkpoints, without failures."""
        return self.snapshots * (self.work(job) + job.snapshot_stall) + job.checkpoint_stall


@dataclass(frozen=True)
class Shares:
    """Shares of the wall time by what the time is spent on; the shares add up to 1."""

    useful: float
    saving: float  # waiting for a snapshot or a checkpoint
    detecting: float
    restarting: float
    lost: float  # training that has to be repeated
    stopping: float  # planned stops


def young(stall: float, between_failures: float) -> float:
    """Return the seconds of work between saves by Young 1974.

    Args:
        stall: seconds that training waits for a save.
        between_failures: mean seconds from one failure to the next.
    """
    return math.sqrt(2 * stall * between_failures)


def daly_first(stall: float, between_failures: float, restart: float) -> float:
    """Return the seconds of work between saves by Daly's first-order model, in which restarts can fail, too.

    Args:
        stall: seconds that training waits for a save.
        between_failures: mean seconds from one failure to the next.
        restart: seconds from a failure until training goes on.
    """
    return max(math.sqrt(2 * stall * (between_failures + restart)) - stall, 0.0)


def daly(stall: float, between_failures: float) -> float:
    """Return the seconds of work between saves by Daly 2006, higher order.

    Args:
        stall: seconds that training waits for a save.
        between_failures: mean seconds from one failure to the next.
    """
    if stall >= 2 * between_failures:
        return between_failures
    x = stall / (2 * between_failures)
    return math.sqrt(2 * stall * between_failures) * (1 + math.sqrt(x) / 3 + x / 9) - stall


def expected_down(job: PlannedJob) -> tuple[float, float]:
    """Return what a failure of training costs. The job's failure rate must be above 0.

    A failure during a restart from memory begins a restart of the new failure's kind; a failure during a restart from
    storage begins the same restart again.

    Returns:
        The expected seconds until training goes on, and the chance that the snapshots in memory are lost by then.
    """
    rate = job.rate
    # repeated: the chance that a failure has a restart from memory that another failure hits, and so begins another.
    # from_storage: the mean seconds of a restart from storage, times the chance that the failure needs one. An attempt
    # that must last t seconds without a failure takes (exp(rate t) - 1) / rate on average: hit / (1 - hit) / rate.
    repeated = 0.0
    from_storage = 0.0
    for kind in job.kinds:
        hit = -math.expm1(-rate * (kind.detect + kind.restart))
        if kind.from_memory:
            repeated += kind.rate / rate * hit
        else:
            from_storage += kind.rate / rate * hit / (rate * (1 - hit)) if hit < 1 else math.inf
    chance = min(job.rate_of(from_memory=False) / rate / (1 - repeated), 1.0) if repeated < 1 else 1.0
    down = (repeated / rate + from_storage) / (1 - repeated) if repeated < 1 else math.inf
    return down, chance


def expected_cycle(job: PlannedJob, work: float, snapshots: float) -> float:
    """Return the expected wall seconds from one committed checkpoint to the next; inf if none is ever reached.

    Let P be the chance that a failure costs the memory, D the expected time down after a failure, and m the failures
    per second. A stretch of s seconds adds g(s) = log(1 + P (exp(m s) - 1)), and the time is

        (1/m + D) / P * exp(g(unsaved)) * (exp(g(saved)) - 1)

    over the stretches of a cycle (saved) and the stretches trained while a checkpoint is still being written (unsaved).
    With P = 1 this is Daly's complete model, with P = 0 that model for snapshots alone. docs/guide/plan.md has the
    derivation.

    Args:
        job: the job.
        work: seconds of training between snapshots.
        snapshots: snapshots from one checkpoint to the next.
    """
    stretch = work + job.snapshot_stall
    if job.rate == 0:
        return snapshots * stretch + job.checkpoint_stall
    down, chance = expected_down(job)
    saved = snapshots * _growth(job.rate, chance, stretch) + _growth(job.rate, chance, job.checkpoint_stall)
    unsaved = max(job.write - job.checkpoint_stall, 0.0) / stretch * _growth(job.rate, chance, stretch)
    if saved + unsaved > _MAX_EXPONENT:
        return math.inf
    if chance == 0:
        stretches = snapshots * math.expm1(job.rate * stretch) + math.expm1(job.rate * job.checkpoint_stall)
        return (1 / job.rate + down) * stretches
    return (1 / job.rate + down) / chance * math.exp(unsaved) * math.expm1(saved)


def effective(job: PlannedJob, intervals: Intervals) -> float:
    """Return the expected share of the wall time that is spent on steps that are never repeated."""
    return _effective(job, intervals.work(job), intervals.snapshots)


def shares(job: PlannedJob, intervals: Intervals) -> Shares:
    """Return the expected shares of the wall time.

    The time down is divided into detecting and restarting in the ratio of their means.
    """
    cycle = expected_cycle(job, intervals.work(job), intervals.snapshots)
    stopping = min(job.stops * job.stop_cost, 1.0)
    if math.isinf(cycle):
        return Shares(useful=0.0, saving=0.0, detecting=0.0, restarting=0.0, lost=1 - stopping, stopping=stopping)
    training = 1.0 if job.rate == 0 else 1 / (1 + job.rate * expected_down(job)[0])
    useful = intervals.snapshots * intervals.work(job) / cycle
    saving = intervals.snapshots * job.snapshot_stall / cycle + job.checkpoint_stall / cycle
    detect = math.fsum(kind.rate * kind.detect for kind in job.kinds)
    restart = math.fsum(kind.rate * kind.restart for kind in job.kinds)
    seen = (1 - training) * detect / (detect + restart) if detect + restart > 0 else 0.0
    rest = 1 - stopping
    return Shares(
        useful=useful * rest,
        saving=saving * rest,
        detecting=seen * rest,
        restarting=(1 - training - seen) * rest,
        lost=max(training - useful - saving, 0.0) * rest,
        stopping=stopping,
    )


def best(job: PlannedJob) -> Intervals:
    """Search the intervals with the shortest expected time.

    No checkpoint begins before the one before is written.
    """
    least = float(job.least_steps)
    steps = least
    if job.snapshot_stall > 0:
        most = _most_steps(job, least)
        steps = _minimize(lambda steps: _loss(job, steps, _best_snapshots(job, steps * job.step)), least, most)
    return max(_whole(job, steps), key=lambda intervals: effective(job, intervals))


def fewest_checkpoints(job: PlannedJob, intervals: Intervals, less: float) -> Intervals:
    """Return intervals with as few checkpoints as possible, at a cost of at most `less` of the effective time.

    The number of snapshots between checkpoints is searched by halving, because the effective time only falls from
    `intervals` on.

    Args:
        job: the job.
        intervals: the best intervals; their steps between snapshots are kept.
        less: share of the wall time that may be given up, between 0 and 1.
    """
    enough = effective(job, intervals) - less
    low, high = intervals.snapshots, max(intervals.snapshots, math.ceil(_MAX_INTERVAL_SECONDS / intervals.work(job)))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if effective(job, Intervals(intervals.steps, middle)) >= enough else (low, middle)
    return Intervals(intervals.steps, low)


def near(job: PlannedJob, snapshot_seconds: float, storage_seconds: float) -> Intervals:
    """Return the possible intervals that are nearest to the wanted ones.

    Possible are whole steps, whole snapshots, and no checkpoint that begins before the one before is written.
    """
    steps = max(round(snapshot_seconds / job.step), job.least_steps)
    stretch = steps * job.step + job.snapshot_stall
    fewest = math.ceil(_fewest_snapshots(job, stretch))
    snapshots = max(round(min(storage_seconds, _MAX_INTERVAL_SECONDS) / stretch), fewest)
    return Intervals(steps, snapshots)


def failures_not_exceeded(rate: float, seconds: float, chance: float) -> int:
    """Return the number of failures in `seconds` that is exceeded with a chance of at most `chance` (Poisson).

    Args:
        rate: failures per second, at least 0.
        seconds: length of the time.
        chance: above 0, and at most 1. Beyond a mean of 1000 failures it is ignored: six deviations above the mean are
            exceeded with a chance of 1e-9.
    """
    mean = rate * seconds
    if mean > 1000:  # normal approximation; no sensible budget is as large
        return math.ceil(mean + 6 * math.sqrt(mean))
    number = 0
    term = math.exp(-mean)
    below = term
    while 1 - below > chance:
        number += 1
        term *= mean / number
        below += term
    return number


def _growth(rate: float, chance: float, seconds: float) -> float:
    """Return g(seconds) of `expected_cycle`. For a large power, log(chance) more or less does not matter."""
    power = rate * seconds
    if chance == 1:
        return power
    return power if power > _MAX_EXPONENT else math.log1p(chance * math.expm1(power))


def _effective(job: PlannedJob, work: float, snapshots: float) -> float:
    """Return the useful share of the wall time.

    Args:
        job: the job.
        work: seconds of training between snapshots.
        snapshots: snapshots from one checkpoint to the next; the search also tries fractions.
    """
    cycle = expected_cycle(job, work, snapshots)
    return snapshots * work / cycle * (1 - min(job.stops * job.stop_cost, 1.0))


def _fewest_snapshots(job: PlannedJob, stretch: float) -> float:
    """Return how many stretches of `stretch` seconds pass at least until the checkpoint before is written."""
    return max((job.write - job.checkpoint_stall) / stretch, 1.0)


def _best_snapshots(job: PlannedJob, work: float) -> float:
    """Return the best number of snapshots from one checkpoint to the next, for `work` seconds between snapshots."""
    fewest = _fewest_snapshots(job, work + job.snapshot_stall)
    if job.rate_of(from_memory=False) == 0:
        return max(_MAX_INTERVAL_SECONDS / work, fewest)
    return _minimize(lambda count: -_effective(job, work, count), fewest, max(_MAX_INTERVAL_SECONDS / work, fewest))


def _whole(job: PlannedJob, steps: float) -> Iterator[Intervals]:
    """Yield possible intervals of whole steps and whole snapshots around the best fractional ones."""
    count = _best_snapshots(job, steps * job.step)
    for number in range(max(math.floor(count) - 2, 1), math.ceil(count) + 3):
        least = ((job.write - job.checkpoint_stall) / number - job.snapshot_stall) / job.step
        fewest = max(math.ceil(least - 1e-9), job.least_steps)
        found = _best_steps(job, number, fewest) if job.snapshot_stall > 0 else float(fewest)
        yield from (Intervals(max(whole, fewest), number) for whole in (math.floor(found), math.ceil(found)))


def _best_steps(job: PlannedJob, snapshots: int, fewest: int) -> float:
    """Return the best number of steps between snapshots, at least `fewest`, if each checkpoint has `snapshots`."""
    return _minimize(lambda steps: _loss(job, steps, snapshots), fewest, _most_steps(job, fewest))


def _loss(job: PlannedJob, steps: float, snapshots: float) -> float:
    """Return the effective share with a minus, to be minimized."""
    return -_effective(job, steps * job.step, snapshots)


def _most_steps(job: PlannedJob, fewest: float = 1) -> float:
    """Return the largest number of steps between snapshots that is searched: 36.5 days, but at least `fewest` steps."""
    return max(_MAX_INTERVAL_SECONDS / 100 / job.step, fewest)


def _minimize(loss: Callable[[float], float], low: float, high: float) -> float:
    """Return the argument between `low` and `high` at which `loss`, which falls and then rises, is least.

    The search is a golden section on the logarithms of the bounds, to a relative precision of 1e-7.

    Args:
        loss: what to make least.
        low: above 0.
        high: at least `low`.
    """
    a, b = math.log(low), math.log(high)
    c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
    at_c, at_d = loss(math.exp(c)), loss(math.exp(d))
    while b - a > 1e-7:
        if at_c <= at_d:  # also if both are infinite: shorter intervals are the better side
            b, d, at_d = d, c, at_c
            c = b - _GOLDEN * (b - a)
            at_c = loss(math.exp(c))
        else:
            a, c, at_c = c, d, at_d
            d = a + _GOLDEN * (b - a)
            at_d = loss(math.exp(d))
    return math.exp((a + b) / 2)
