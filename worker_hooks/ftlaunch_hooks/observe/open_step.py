"""Whether an optimizer has stepped since the last boundary of a loop of the script's own."""

from __future__ import annotations

import os
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook


class OpenStep:
    """Must be made at a boundary."""

    def __init__(self) -> None:
        self.stepped = False
        """an optimizer has stepped, and no boundary has followed; whoever crosses a boundary sets it to False"""
        hook = register_optimizer_step_pre_hook(self._before_step)
        os.register_at_fork(after_in_child=hook.remove)  # a child's steps are not the rank's

    def _before_step(self, optimizer: object, args: Any, kwargs: Any) -> None:
        self.stepped = True
