"""How many steps must lie between copies to other nodes so that training hardly notices them. Pure.

A copy takes longer on a link that the job itself fills, so that the share of the time also says what the network has
left: a job that sums up gradients all the time is slowed down by so much at most, whatever the bandwidth of its link.
"""

from __future__ import annotations

import math

PROCESSOR_SHARE = 0.01
"""of a node's processors in the time of training: what copies may take of them"""
TIME_SHARE = 0.05
"""of the time of training: how long copies may be under way"""


def steps_between(seconds: float, processor_seconds: float, step_seconds: float, processors: int) -> int:
    """Return the fewest steps between copies that keep to both shares.

    Args:
        seconds: how long one copy is under way.
        processor_seconds: what one copy takes of the node's processors.
        step_seconds: of a training step; 0: not known.
        processors: of the node.
    """
    if step_seconds <= 0:
        return 1
    for_processors = processor_seconds / (PROCESSOR_SHARE * processors * step_seconds)
    for_time = seconds / (TIME_SHARE * step_seconds)
    return max(1, math.ceil(for_processors), math.ceil(for_time))
