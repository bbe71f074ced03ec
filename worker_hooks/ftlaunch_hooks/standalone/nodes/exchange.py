"""Defines what the nodes tell each other at step boundaries, and what follows from that. Pure.

Each node reports a few numbers at the same steps, and every node receives the maximum of each number. Everything else
is derived from these maxima, so that all nodes announce the same stop, save and interval at the same step without a
further exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_EXCHANGE_US = 50_000  # microseconds between two exchanges, about
_LONG_STEP_US = 200_000  # microseconds; longer steps wait for each exchange, which takes 1 % of their time at most
_MOST_STEPS = 1_000  # steps between two exchanges, at most
_EXCHANGES_PER_SAVE = 4  # exchanges, at least, between two saves whose interval is a number of steps
_LOOP_SHIFT = 48  # an intent holds the loop's number above this bit, and the total of steps below


@dataclass(frozen=True)
class NodeSays:
    """One node's report at a boundary."""

    stop: bool
    """whether a rank was told to stop"""
    save: bool
    """whether a rank has asked for a checkpoint"""
    due: bool
    """whether the time for the next save has come; only the first node's clock counts"""
    busy: bool
    """whether the previous save is not over on this node"""
    step_us: int
    """microseconds that the last step took; 0 before the first step"""
    every: int
    """steps between snapshots that the node wants; 0: none, or not known"""
    intent: int
    """the loop's number and the total of steps that the script will make, in one number"""

    def numbers(self) -> list[int]:
        """Encode this report for LeaderGroup.begin_maximum: eight numbers, of each of which the maximum counts."""
        return [
            int(self.stop),
            int(self.save),
            int(self.due),
            int(self.busy),
            self.step_us,
            self.every,
            self.intent,
            -self.intent,
        ]


@dataclass(frozen=True)
class NodesSay:
    """The reports of all nodes at one boundary: of each field the maximum over the nodes."""

    stop: bool
    save: bool
    due: bool
    busy: bool
    step_us: int
    every: int
    intents: tuple[int, int]
    """the largest and the smallest intent of the nodes"""

    @staticmethod
    def of(numbers: list[int]) -> NodesSay:
        """Decode the maxima of the numbers that `NodeSays.numbers` returned."""
        stop, save, due, busy, step_us, every, largest, negated_smallest = numbers
        return NodesSay(
            stop=bool(stop),
            save=bool(save),
            due=bool(due),
            busy=bool(busy),
            step_us=step_us,
            every=every,
            intents=(largest, -negated_smallest),
        )

    def unequal_totals(self) -> tuple[int, int] | None:
        """Return the largest and the smallest total of steps of the same loop if the nodes' totals differ, or None."""
        largest, smallest = self.intents
        if largest == smallest or largest >> _LOOP_SHIFT != smallest >> _LOOP_SHIFT:
            return None
        total_mask = (1 << _LOOP_SHIFT) - 1
        return largest & total_mask, smallest & total_mask


@dataclass(frozen=True)
class Rhythm:
    """The steps at which nodes exchange their reports."""

    every: int
    """steps between two exchanges"""
    at_once: bool
    """whether a step waits for its exchange; otherwise the step of the next exchange waits, when it is long over"""


def rhythm(step_us: int, every_steps: int | None) -> Rhythm:
    """Choose how often the nodes exchange their reports.

    Args:
        step_us: microseconds that a step takes on the slowest node; 0 if unknown.
        every_steps: the interval of saves, if it is a number of steps.
    """
    if step_us <= 0 or step_us >= _LONG_STEP_US:
        return Rhythm(1, at_once=True)
    every = min(math.ceil(_EXCHANGE_US / step_us), _MOST_STEPS)
    if every_steps is not None:
        every = max(min(every, every_steps // _EXCHANGES_PER_SAVE), 1)
    return Rhythm(every, at_once=False)


def next_save(said: NodesSay, earliest: int, every_steps: int | None) -> int | None:
    """Return the step to save next, or None if no save is to be announced now.

    Args:
        said: the reports of all nodes.
        earliest: the first step that may be announced.
        every_steps: the interval of saves, if it is a number of steps.
    """
    if said.busy or not (said.save or said.due or every_steps is not None):
        return None
    if every_steps is None or said.save:
        return earliest
    return -(-earliest // every_steps) * every_steps
