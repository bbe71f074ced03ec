"""What each kind of fault of a story does to a simulated job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.support.simulation.story import Fault

if TYPE_CHECKING:
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine

_Do = Callable[["Job", "Machine", Fault], bool | None]
"""Does what the fault says; returns False if the fault has nothing to act on at this moment."""


def befall(job: Job, fault: Fault) -> None:
    """Apply a fault to a job that still runs, and note its kind if it had something to act on."""
    if job.over:
        return
    machine = job.machines[fault.machine % len(job.machines)]
    if _DO[fault.kind](job, machine, fault) is not False:
        job.fired.add(fault.kind)


def _rank(job: Job, machine: Machine, fault: Fault) -> bool:
    if not machine.ranks.trains:
        return False
    job.world.record(f"the ranks of {machine.name} fail")
    machine.ranks.die(1)
    return True


def _cut(job: Job, machine: Machine, fault: Fault) -> None:
    machine.cut(up=fault.way != "down", down=fault.way != "up", seconds=fault.seconds)


def _reset(job: Job, machine: Machine, fault: Fault) -> None:
    job.world.record(f"the connections of {machine.name} are reset")
    machine.way.reset(fault.seconds)


def _head(job: Job, machine: Machine, fault: Fault) -> bool:
    if job.head is None:
        return False
    job.kill_heads(job.head.machine)
    return True


def _head_stall(job: Job, machine: Machine, fault: Fault) -> bool:
    if job.head is None:
        return False
    job.head.stall(fault.seconds)
    return True


def _storage(sentence: str, apply: Callable[[Job, Machine, Fault], None]) -> _Do:
    def do(job: Job, machine: Machine, fault: Fault) -> None:
        job.world.record(f"storage: {sentence.format(machine.name, fault.seconds)}")
        apply(job, machine, fault)

    return do


def _lose_answer(job: Job, machine: Machine, fault: Fault) -> None:
    job.claims.shared.lose_next_answer = True


_DO: Mapping[str, _Do] = {
    "rank": _rank,
    "crash": lambda job, machine, fault: machine.crash(fault.seconds),
    "freeze": lambda job, machine, fault: machine.freeze(fault.seconds),
    "stall": lambda job, machine, fault: machine.stall(fault.seconds),
    "cut": _cut,
    "reset": _reset,
    "head": _head,
    "head-stall": _head_stall,
    "machine": lambda job, machine, fault: machine.lose(fault.seconds),
    "storage-slow": _storage("slow for {0}, {1:g} s", lambda job, m, fault: job.claims.be_slow(m, fault.seconds)),
    "storage-silent": _storage("silent for {1:g} s", lambda job, _, fault: job.claims.be_silent(None, fault.seconds)),
    "storage-apart": _storage("silent for {0}, {1:g} s", lambda job, m, fault: job.claims.be_silent(m, fault.seconds)),
    "storage-old": _storage(
        "{0} sees what was there before, {1:g} s", lambda job, m, fault: job.claims.seen_by(m).grow_old(fault.seconds)
    ),
    "ack-lost": _storage("the answer to the next link is lost", _lose_answer),
    "grow": lambda job, machine, fault: job.regroup(lambda regrouping: regrouping.grow()),
    "drain": lambda job, machine, fault: job.regroup(
        lambda regrouping: regrouping.drain(str(max(machine.ranks.place, 0)), "asked for")
    ),
    "signal": lambda job, machine, fault: job.signal(machine),
}
