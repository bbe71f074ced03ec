"""How long training takes under failures, and the intervals that make it shortest. Pure.

Two layers. A snapshot in memory survives failures of processes, and is lost with its node; a checkpoint on storage
survives all. Failures come at a constant rate (exponential gaps), at any time, restarts included.

J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_LONGEST = 3650 * 86400.0  # seconds; no interval is longer
_HOPELESS = 700.0  # e to this power is about the largest float: the job comes to no end
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class FailureKind:
    """One kind of failure. Times are seconds."""

    name: str
    rate: float  # failures a second, of the whole job
    detect: float  # from the failure until it is acted on
    restart: float  # from there until training goes on, with its state back
    from_memory: bool  # snapshots survive it


@dataclass(frozen=True)
class PlannedJob:
    """What is planned for. Times are seconds."""

    step: float  # a step, when nothing is saved
    snapshot_stall: float  # training waits so long for a snapshot
    checkpoint_stall: float  # and so much longer for one that becomes a checkpoint
    write: float  # from the begin of a checkpoint until it is committed; training goes on meanwhile
    kinds: tuple[FailureKind, ...]
    stops: float = 0.0  # planned stops a second: told to stop, saved, started again
    stop_cost: float = 0.0  # seconds of one
    least_steps: int = 1  # between snapshots: each is copied to another node before the next one

    @property
    def rate(self) -> float:
        """Failures a second, of any kind."""
        return math.fsum(kind.rate for kind in self.kinds)

    def rate_of(self, from_memory: bool) -> float:
        """Failures a second that snapshots survive, or that they do not survive."""
        return math.fsum(kind.rate for kind in self.kinds if kind.from_memory is from_memory)


@dataclass(frozen=True)
class Intervals:
    """When to save. A checkpoint is a snapshot, so it comes after a whole number of them."""

    steps: int  # from one snapshot to the next
    snapshots: int  # from one checkpoint to the next

    def work(self, job: PlannedJob) -> float:
        """Seconds of training between snapshots."""
        return self.steps * job.step

    def storage_seconds(self, job: PlannedJob) -> float:
        """Seconds from the begin of a checkpoint to the begin of the next, undisturbed."""
        return self.snapshots * (self.work(job) + job.snapshot_stall) + job.checkpoint_stall


@dataclass(frozen=True)
class Shares:
    """Where the wall time goes; they add up to 1."""

    useful: float
    saving: float  # training waits for a snapshot or a checkpoint
    detecting: float
    restarting: float
    lost: float  # training that has to be made again
    stopping: float  # planned stops


def young(stall: float, between_failures: float) -> float:
    """Young 1974: seconds of work between saves."""
    return math.sqrt(2 * stall * between_failures)


def daly_first(stall: float, between_failures: float, restart: float) -> float:
    """Daly's first-order model: seconds of work between saves; a restart counts as time in which failures come."""
    return max(math.sqrt(2 * stall * (between_failures + restart)) - stall, 0.0)


def daly(stall: float, between_failures: float) -> float:
    """Daly 2006, higher order: seconds of work between saves."""
    if stall >= 2 * between_failures:
        return between_failures
    x = stall / (2 * between_failures)
    return math.sqrt(2 * stall * between_failures) * (1 + math.sqrt(x) / 3 + x / 9) - stall


def expected_down(job: PlannedJob) -> tuple[float, float]:
    """After a failure of training: expected seconds until it goes on, and the chance that memory is lost by then.

    A failure during a restart begins a restart of its own kind; from storage it begins the same one again.
    """
    rate = job.rate
    again = from_storage = 0.0
    for kind in job.kinds:
        hit = -math.expm1(-rate * (kind.detect + kind.restart))
        if kind.from_memory:
            again += kind.rate / rate * hit
        else:
            from_storage += kind.rate / rate * hit / (rate * (1 - hit)) if hit < 1 else math.inf
    chance = min(job.rate_of(from_memory=False) / rate / (1 - again), 1.0) if again < 1 else 1.0
    down = (again / rate + from_storage) / (1 - again) if again < 1 else math.inf
    return down, chance


def expected_cycle(job: PlannedJob, work: float, snapshots: float) -> float:
    """Expected wall seconds from one committed checkpoint to the next; inf where none is ever reached.

    work: seconds of training between snapshots. snapshots: how many there are to a checkpoint. Let P be the chance
    that a failure costs the memory, D the expected time down after one, and m the failures a second. A stretch of
    s seconds adds g(s) = log(1 + P (exp(m s) - 1)), and the time is

        (1/m + D) / P * exp(g(unsaved)) * (exp(g(saved)) - 1)

    over the stretches of a cycle (saved) and those trained while a checkpoint is still being written (unsaved). With
    P = 1 this is Daly's complete model, with P = 0 the same for snapshots alone. docs/guide/plan.md has the derivation.
    """
    stretch = work + job.snapshot_stall
    if job.rate == 0:
        return snapshots * stretch + job.checkpoint_stall
    down, chance = expected_down(job)
    saved = snapshots * _growth(job.rate, chance, stretch) + _growth(job.rate, chance, job.checkpoint_stall)
    unsaved = max(job.write - job.checkpoint_stall, 0.0) / stretch * _growth(job.rate, chance, stretch)
    if saved + unsaved > _HOPELESS:
        return math.inf
    if chance == 0:
        stretches = snapshots * math.expm1(job.rate * stretch) + math.expm1(job.rate * job.checkpoint_stall)
        return (1 / job.rate + down) * stretches
    return (1 / job.rate + down) / chance * math.exp(unsaved) * math.expm1(saved)


def effective(job: PlannedJob, intervals: Intervals) -> float:
    """Expected share of the wall time that makes steps which count."""
    return _effective(job, intervals.work(job), intervals.snapshots)


def shares(job: PlannedJob, intervals: Intervals) -> Shares:
    """Where the wall time is expected to go; detecting and restarting by the mean of what each takes."""
    cycle = expected_cycle(job, intervals.work(job), intervals.snapshots)
    stopping = min(job.stops * job.stop_cost, 1.0)
    if math.isinf(cycle):
        return Shares(0.0, 0.0, 0.0, 0.0, 1 - stopping, stopping)
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
    """The intervals with the shortest expected time, by search. No checkpoint begins before the last is written."""
    steps = least = float(job.least_steps)
    if job.snapshot_stall > 0:
        most = _most_steps(job, least)
        steps = _least(lambda steps: _loss(job, steps, _best_snapshots(job, steps * job.step)), least, most)
    return max(_whole(job, steps), key=lambda intervals: effective(job, intervals))


def seldom(job: PlannedJob, intervals: Intervals, less: float) -> Intervals:
    """The same with checkpoints as seldom as they can be where `less` of the effective time may be given up for it."""
    enough = effective(job, intervals) - less
    low, high = intervals.snapshots, max(intervals.snapshots, math.ceil(_LONGEST / intervals.work(job)))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if effective(job, Intervals(intervals.steps, middle)) >= enough else (low, middle)
    return Intervals(intervals.steps, low)


def near(job: PlannedJob, snapshot_seconds: float, storage_seconds: float) -> Intervals:
    """The possible intervals nearest to these: whole steps, whole snapshots, storage never faster than it writes."""
    steps = max(round(snapshot_seconds / job.step), job.least_steps)
    stretch = steps * job.step + job.snapshot_stall
    snapshots = max(round(min(storage_seconds, _LONGEST) / stretch), math.ceil(_fewest(job, stretch)))
    return Intervals(steps, snapshots)


def most_in(rate: float, seconds: float, chance: float) -> int:
    """The number of failures in `seconds` that is exceeded with this chance at most (Poisson)."""
    mean = rate * seconds
    if mean > 1000:  # by the normal approximation; far from any budget that makes sense
        return math.ceil(mean + 6 * math.sqrt(mean))
    number, term = 0, math.exp(-mean)
    below = term
    while 1 - below > chance:
        number += 1
        term *= mean / number
        below += term
    return number


def _growth(rate: float, chance: float, seconds: float) -> float:
    power = rate * seconds
    if chance == 1:
        return power
    return power if power > _HOPELESS else math.log1p(chance * math.expm1(power))


def _effective(job: PlannedJob, work: float, snapshots: float) -> float:
    cycle = expected_cycle(job, work, snapshots)
    return snapshots * work / cycle * (1 - min(job.stops * job.stop_cost, 1.0))


def _fewest(job: PlannedJob, stretch: float) -> float:
    return max((job.write - job.checkpoint_stall) / stretch, 1.0)


def _best_snapshots(job: PlannedJob, work: float) -> float:
    fewest = _fewest(job, work + job.snapshot_stall)
    if job.rate_of(from_memory=False) == 0:
        return max(_LONGEST / work, fewest)
    return _least(lambda count: -_effective(job, work, count), fewest, max(_LONGEST / work, fewest))


def _whole(job: PlannedJob, steps: float) -> Iterator[Intervals]:
    """Possible intervals of whole steps and whole snapshots around the best ones."""
    count = _best_snapshots(job, steps * job.step)
    for number in range(max(math.floor(count) - 2, 1), math.ceil(count) + 3):
        least = ((job.write - job.checkpoint_stall) / number - job.snapshot_stall) / job.step
        fewest = max(math.ceil(least - 1e-9), job.least_steps)
        found = _best_steps(job, number, fewest) if job.snapshot_stall > 0 else float(fewest)
        yield from (Intervals(max(whole, fewest), number) for whole in (math.floor(found), math.ceil(found)))


def _best_steps(job: PlannedJob, snapshots: int, fewest: int) -> float:
    return _least(lambda steps: _loss(job, steps, snapshots), fewest, _most_steps(job, fewest))


def _loss(job: PlannedJob, steps: float, snapshots: float) -> float:
    return -_effective(job, steps * job.step, snapshots)


def _most_steps(job: PlannedJob, fewest: float = 1) -> float:
    return max(_LONGEST / 100 / job.step, fewest)


def _least(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where `loss`, which falls and then rises, is least between low and high: golden section, on their logarithms."""
    a, b = math.log(low), math.log(high)
    c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
    at_c, at_d = loss(math.exp(c)), loss(math.exp(d))
    while b - a > 1e-7:
        if at_c <= at_d:  # also where both are hopeless: shorter is the better side
            b, d, at_d = d, c, at_c
            c = b - _GOLDEN * (b - a)
            at_c = loss(math.exp(c))
        else:
            a, c, at_c = c, d, at_d
            d = a + _GOLDEN * (b - a)
            at_d = loss(math.exp(d))
    return math.exp((a + b) / 2)
