"""Decides how many steps must lie between copies to other nodes, so that they hardly slow down training. Pure.

A copy takes longer on a link that the job itself fills. Therefore the share of time also limits the share of the
network: a job that sums up gradients all the time is slowed down by at most this share, whatever the bandwidth of its
link.
"""

from __future__ import annotations

import math

PROCESSOR_SHARE = 0.01
"""the fraction of a node's processors that copies may take"""
TIME_SHARE = 0.05
"""the fraction of the time during which copies may be under way"""


def steps_between(seconds: float, processor_seconds: float, step_seconds: float, processors: int) -> int:
    """Return the fewest steps between copies that keep to both shares.

    Args:
        seconds: the time that one copy is under way.
        processor_seconds: the processor time that one copy takes.
        step_seconds: the time of a training step; 0 if unknown.
        processors: the number of the node's processors.
    """
    if step_seconds <= 0:
        return 1
    for_processors = processor_seconds / (PROCESSOR_SHARE * processors * step_seconds)
    for_time = seconds / (TIME_SHARE * step_seconds)
    return max(1, math.ceil(for_processors), math.ceil(for_time))
