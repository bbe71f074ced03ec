"""Whether a script trains without torch.optim: `p.data.add_(p.grad, alpha=-lr)` makes steps that nobody sees."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Flag


def noter(page: Page) -> Callable[[], None]:
    """Return what is called as an exception ends the rank: it notes that the rank's steps are not known.

    Gradients say that the script has trained. Where an optimizer is there, and has not stepped, the script has not come
    to its first step.
    """
    owner = os.getpid()

    def note() -> None:
        is_seen = page.seen_steps or page.flags & (Flag.ATTACHED | Flag.OBSERVED)
        if os.getpid() == owner and not is_seen and has_gradients() and not has_optimizer():
            page.raise_flag(Flag.STEPS_UNKNOWN)

    return note


def has_gradients() -> bool:
    """Whether any parameter of this process has a gradient. Takes some ten milliseconds."""
    from torch.nn import Parameter  # noqa: PLC0415 - torch may be the caller

    return any(type(one) is Parameter and one.grad is not None for one in gc.get_objects())


def has_optimizer() -> bool:
    """Whether any of torch's optimizers is there. Takes some ten milliseconds."""
    from torch.optim import Optimizer  # noqa: PLC0415 - likewise

    return any(issubclass(type(one), Optimizer) for one in gc.get_objects())
