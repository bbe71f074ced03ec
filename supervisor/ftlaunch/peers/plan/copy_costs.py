"""How many steps must lie between copies to other nodes so that training hardly notices them. Pure."""

from __future__ import annotations

import math

SHARE = 0.01
"""of a node's processors in the time of training: what copies may take of them"""
_SLACK = 2.0  # times as long as a copy takes: the copy of a step is there before that of the next one begins


def steps_between(seconds: float, processor_seconds: float, step_seconds: float, processors: int) -> int:
    """The fewest steps between copies of which one takes so long.

    processor_seconds: what it takes of the node's `processors`. step_seconds: of a training step; 0: not known.
    """
    if step_seconds <= 0:
        return 1
    busy = processor_seconds / (SHARE * processors * step_seconds)
    return max(1, math.ceil(busy), math.ceil(_SLACK * seconds / step_seconds))
