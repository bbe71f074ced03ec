"""Measures a rank's own part of a step: the time in which the rank waits for no other rank, but others may wait for it.

A step has two own parts: from its beginning to the last gradient of the backward pass (data, forward, backward), and
from the optimizer's step to the boundary. Between the two a rank waits for the other ranks' gradients. The first
parameter of an optimizer gets its gradient last; DistributedDataParallel reduces gradients meanwhile, and waits
afterwards. Work on a GPU counts for as long as its launch takes, unless the script waits for the GPU.

All of this runs in the threads that train: hooks of torch, and calls of the Job and of `optimizer_steps`.
"""

from __future__ import annotations

import os
import time
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ftlaunch_contract.pages.page import Page


class Stopwatch:
    """Adds a rank's own parts up in its page. Costs some 7 microseconds a step (two hooks, four clock reads)."""

    def __init__(self, page: Page, *, compared: bool) -> None:
        """Register the hook of optimizer steps. The first step is not measured: it begins before any call of `begin`.

        Args:
            page: of this rank.
            compared: whether the job has other ranks to compare with. Without them nothing is measured, and no hook is
                registered.
        """
        self._page: Page | None = page
        self._began_ns = 0  # monotonic, as the two that follow
        self._last_gradient_ns = 0
        self._stepped_ns = 0
        self._excused_ns = 0
        """the part of the step under way that was no training"""
        self._hooked: WeakSet[Optimizer] = WeakSet()
        """optimizers whose first parameter has a hook"""
        self._hooks: list[Any] = [register_optimizer_step_pre_hook(self._before_step)] if compared else []
        os.register_at_fork(after_in_child=self.close)  # a child's steps are not the rank's

    def begin(self, now_ns: int) -> None:
        """Restart the step under way at `now_ns`, because the rank has waited until now."""
        self._began_ns = now_ns

    def excuse(self, nanoseconds: int) -> None:
        """Subtract time from the step under way that was no training: an evaluation, a checkpoint."""
        self._excused_ns += nanoseconds

    def turn(self, now_ns: int) -> None:
        """End a step, and begin the next. A step without a backward pass or an optimizer's step is not measured."""
        began_ns = self._began_ns
        gradient_ns = self._last_gradient_ns
        stepped_ns = self._stepped_ns
        if 0 < began_ns < gradient_ns <= stepped_ns and self._page is not None:
            own_ns = gradient_ns - began_ns + now_ns - stepped_ns - self._excused_ns
            self._page.note_own(own_ns if own_ns > 0 else 0)
        self._began_ns = now_ns
        self._excused_ns = 0

    def close(self) -> None:
        """Stop measuring."""
        self._page = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepped_ns = time.monotonic_ns()
        if optimizer in self._hooked:
            return
        self._hooked.add(optimizer)
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        trained = (each for each in parameters if isinstance(each, Parameter) and each.requires_grad)
        first = next(trained, None)
        if first is not None:
            self._hooks.append(first.register_hook(self._on_gradient))  # type: ignore[no-untyped-call]

    def _on_gradient(self, gradient: Tensor) -> None:
        self._last_gradient_ns = time.monotonic_ns()
