"""Tells whether an optimizer has stepped since the last boundary between two steps.

The Job asks at the end of a loop: a step that an optimizer has made counts, even where `break` has left the loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from torch.optim.optimizer import register_optimizer_step_pre_hook


class CountsSteps(Protocol):
    """What OpenStep needs of a Job."""

    step: int
    """number of completed steps"""


class OpenStep:
    """The step under way. An ordinary boundary costs nothing here: the count of completed steps tells all."""

    def __init__(self, job: CountsSteps) -> None:
        """Register a hook of optimizer steps. job: the job whose steps are counted."""
        self._job = job
        self._stepped_after: int | None = None
        """number of completed steps when an optimizer stepped last"""
        self.before_first: Callable[[FrameType], bool] | None = None
        """a function that is called before each optimizer step with the caller's frame, until it returns True"""
        hook = register_optimizer_step_pre_hook(self._before_step)
        os.register_at_fork(after_in_child=hook.remove)  # a child's steps are not the rank's

    def _before_step(self, optimizer: object, args: Any, kwargs: Any) -> None:
        self._stepped_after = self._job.step
        if self.before_first is not None and self.before_first(sys._getframe(1)):
            self.before_first = None

    @property
    def is_made(self) -> bool:
        """Whether an optimizer has stepped in the step under way."""
        return self._stepped_after == self._job.step

    @property
    def is_known(self) -> bool:
        """Whether any optimizer has stepped yet. A script that changes its parameters by hand has no optimizer."""
        return self._stepped_after is not None
