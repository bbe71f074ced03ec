"""Tells whether a script trains without torch.optim: `p.data.add_(p.grad, alpha=-lr)` makes steps that nobody sees.

`optimizer_steps` and `forward_passes` ask for it in ranks without attach(). Nothing here changes an object.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Flag


def noter(page: Page) -> Callable[[], None]:
    """Return a function that notes in `page` that this rank's steps are not known, for an exception that ends the rank.

    Gradients show that the script has trained. A script with an optimizer that has not stepped has not come to its
    first step, and is left alone.
    """
    owner = os.getpid()

    def note() -> None:
        is_seen = page.seen_steps or page.flags & (Flag.ATTACHED | Flag.OBSERVED)
        if os.getpid() == owner and not is_seen and has_gradients() and not has_optimizer():
            page.raise_flag(Flag.STEPS_UNKNOWN)

    return note


def has_gradients() -> bool:
    """Return whether any parameter of this process has a gradient. Takes some ten milliseconds."""
    from torch.nn import Parameter  # noqa: PLC0415 - torch may be the caller

    return any(type(found) is Parameter and found.grad is not None for found in gc.get_objects())


def has_optimizer() -> bool:
    """Return whether this process has an optimizer of torch. Takes some ten milliseconds."""
    from torch.optim import Optimizer  # noqa: PLC0415 - torch may be the caller

    return any(issubclass(type(found), Optimizer) for found in gc.get_objects())
