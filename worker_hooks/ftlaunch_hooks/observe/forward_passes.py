"""Finds signs of life of a script without an optimizer: checks once a second whether a module is called.

A hook that runs at every call of every module would cost as much as a small step. Therefore a thread installs the hook
once a second, and the hook removes itself at the first call, in the script's thread. The hook is not installed while
optimizers step, nor where torch's compiler is loaded: compiled code avoids modules with global hooks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Flag
from ftlaunch_hooks.observe import hand_made_steps

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_PERIOD_SECONDS = 1.0
_MOST_SEARCHES = 5
"""largest number of searches for gradients in a script whose optimizers have not stepped"""


class Passes:
    """Beats when a module is called, until steps are seen."""

    def __init__(self, page: Page) -> None:
        """Start the thread. page: of this rank."""
        self._page = page
        self._searches_left = _MOST_SEARCHES
        self._hook: RemovableHandle | None = None
        self._is_closed = threading.Event()
        threading.Thread(target=self._watch, name="ftlaunch-passes", daemon=True).start()
        os.register_at_fork(after_in_child=self._forget)

    def close(self) -> None:
        """End the thread, and remove the hook."""
        self._is_closed.set()
        self._remove_hook()

    def _forget(self) -> None:
        """Close in a forked child, whose calls are not the rank's. The parent's event may have a lock held for ever."""
        self._is_closed = threading.Event()
        self.close()

    def _watch(self) -> None:
        while not self._is_closed.wait(_PERIOD_SECONDS):
            if self._page.flags & (Flag.OBSERVED | Flag.ATTACHED):
                self.close()
            elif self._hook is None and "torch._dynamo" not in sys.modules:
                self._install_hook()

    def _install_hook(self) -> None:
        from torch.nn.modules.module import register_module_forward_hook  # noqa: PLC0415 - torch calls us first

        self._hook = register_module_forward_hook(self._called)

    def _called(self, module: Any, args: Any, result: Any) -> None:
        self._remove_hook()
        self._page.touch(time.monotonic_ns())
        if self._searches_left and module.training:
            self._searches_left -= 1
            self._search_hand_made_steps()

    def _search_hand_made_steps(self) -> None:
        """Note in the page whether the script has gradients and no optimizer. Takes some ten milliseconds."""
        if not hand_made_steps.has_gradients():
            return
        self._searches_left = 0
        if not hand_made_steps.has_optimizer():
            self._page.raise_flag(Flag.STEPS_UNKNOWN)

    def _remove_hook(self) -> None:
        hook = self._hook
        self._hook = None
        if hook is not None:
            hook.remove()
