"""Reports the losses of a step where a script calls `loss.backward()`.

`torch.Tensor.backward` is replaced by a function that reports the tensor to a listener, and then calls the original.
Only tensors with one number count as losses. The listener runs in the thread that calls `backward`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from torch import Tensor

_listener: Callable[[Tensor], None] | None = None


def listen(listener: Callable[[Tensor], None] | None) -> None:
    """Call `listener` with each detached loss from now on, in place of the listener before; None ends this.

    A loss may lie on a device, where reading the loss would wait for the device.
    """
    global _listener  # noqa: PLW0603 - one process is one rank
    _listener = listener
    if listener is not None:
        _replace_backward()


@functools.cache
def _replace_backward() -> None:
    original: Callable[..., Any] = Tensor.backward

    @functools.wraps(original)
    def backward(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is not None and type(self) is Tensor and self.numel() == 1:
            listener(self.detach())
        return original(self, *args, **kwargs)

    Tensor.backward = backward  # type: ignore[method-assign]
    os.register_at_fork(after_in_child=lambda: listen(None))  # a child's losses are not the rank's
