"""What the nodes tell each other at step boundaries, and what follows from it. Pure.

Each node says a few numbers at the same steps, and every node gets the largest of each. What follows is worked out from
these alone, so all nodes announce the same stop, save and interval, at the same step, without another word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_OFTEN_US = 50_000  # microseconds between two exchanges, about
_LONG_US = 200_000  # steps that take longer wait for each exchange: a hundredth of their time at most
_MOST = 1_000  # steps between two exchanges
_BEFORE_SAVE = 4  # exchanges, at least, between two saves whose interval is a number of steps
_LOOP = 48  # an intent: loop number above these bits, total steps below


@dataclass(frozen=True)
class NodeSays:
    """What one node says at a boundary; as numbers, of which the largest counts."""

    stop: bool  # a rank was told to stop
    save: bool  # a rank has asked for a checkpoint
    due: bool  # the time for the next save has come; only the first node's clock counts
    busy: bool  # the save before is not over on this node
    step_us: int  # what the last step took, microseconds; 0 before the first
    every: int  # steps between snapshots that the node wants; 0: none, or not known
    intent: int  # loop and number of steps that the script is to make

    def numbers(self) -> list[int]:
        """For LeaderGroup.begin_maximum."""
        said = [self.stop, self.save, self.due, self.busy, self.step_us, self.every, self.intent, -self.intent]
        return [int(one) for one in said]


@dataclass(frozen=True)
class NodesSay:
    """What all nodes have said at one boundary."""

    stop: bool
    save: bool
    due: bool
    busy: bool
    step_us: int
    every: int
    intents: tuple[int, int]  # the largest and the smallest

    @staticmethod
    def of(numbers: list[int]) -> NodesSay:
        """From the largest of each of `NodeSays.numbers`."""
        stop, save, due, busy, step_us, every, most, least = numbers
        return NodesSay(bool(stop), bool(save), bool(due), bool(busy), step_us, every, (most, -least))

    def unequal_totals(self) -> tuple[int, int] | None:
        """The most and the fewest steps that nodes are to make in the same loop, where these differ."""
        most, least = self.intents
        if most == least or most >> _LOOP != least >> _LOOP:
            return None
        below = (1 << _LOOP) - 1
        return most & below, least & below


@dataclass(frozen=True)
class Rhythm:
    """When nodes tell each other something."""

    every: int  # steps between two exchanges
    at_once: bool  # an exchange is waited for where it begins; else at the next one, when it is long over


def rhythm(step_us: int, every_steps: int | None) -> Rhythm:
    """Steps of `step_us` microseconds on the slowest node; every_steps: the interval of saves, where it is in steps."""
    if step_us <= 0 or step_us >= _LONG_US:
        return Rhythm(1, at_once=True)
    every = min(math.ceil(_OFTEN_US / step_us), _MOST)
    return Rhythm(every if every_steps is None else max(min(every, every_steps // _BEFORE_SAVE), 1), at_once=False)


def next_save(said: NodesSay, earliest: int, every_steps: int | None) -> int | None:
    """The step to save next, `earliest` at least; None where none is to be announced now."""
    if said.busy or not (said.save or said.due or every_steps is not None):
        return None
    if every_steps is None or said.save:
        return earliest
    return -(-earliest // every_steps) * every_steps
