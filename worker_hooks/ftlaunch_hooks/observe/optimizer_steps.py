"""Observes the progress of a script without attach(): every optimizer step is a beat in the rank's page.

torch calls `install` at the end of `import torch` in every process of an environment in which this package is
installed (entry point group `torch.backends`). `install` does nothing outside a supervisor's ranks. The hook runs in
the thread that steps the optimizer. `forward_passes` observes scripts that have no optimizer.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import Any

from ftlaunch_contract.pages.page import Page
from ftlaunch_hooks.observe import hand_made_steps, known_loops
from ftlaunch_hooks.process import bootstrap, error_file, worker_server

_observer: Observer | None = None


def install() -> None:
    """Observe this rank. A failure is written to stderr, because the import of torch must not fail."""
    global _observer  # noqa: PLW0603 - one process is one rank
    try:
        page = bootstrap.own_page()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"ftlaunch: cannot report this rank's progress: {error}\n")
        return
    if page is not None and _observer is None:
        _observer = Observer(page)
        worker_server.start(page.path.parent, int(os.environ["RANK"]))


def stop() -> None:
    """Stop observing, because attach() reports steps itself from now on. Do not call this while an optimizer steps."""
    if _observer is not None:
        _observer.close()


def _has_peers() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


class Observer:
    """Beats at every optimizer step, until attach() reports steps itself."""

    def __init__(self, page: Page) -> None:
        """Register the hook. page: of this rank."""
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415 - torch calls us first

        from ftlaunch_hooks.observe.forward_passes import Passes  # noqa: PLC0415 - it imports torch
        from ftlaunch_hooks.observe.step_timer import Stopwatch  # noqa: PLC0415 - it imports torch

        self._page: Page | None = page
        self._steps: Counter[int] = Counter()  # by the optimizer's id: a script may step several optimizers in turn
        self._last_ns = time.monotonic_ns()
        self._stopwatch = Stopwatch(page, compared=_has_peers())
        self._passes = Passes(page)
        self._hook = register_optimizer_step_post_hook(self._stepped)
        error_file.before_it_is_shown(hand_made_steps.noter(page))
        os.register_at_fork(after_in_child=self.close)  # a child's steps are not the rank's

    def _stepped(self, optimizer: object, args: Any, kwargs: Any) -> None:
        page = self._page
        if page is None:
            return
        self._steps[id(optimizer)] += 1
        made = self._steps[id(optimizer)]
        now_ns = time.monotonic_ns()
        if made < page.seen_steps:
            return  # this optimizer steps less often than another optimizer
        if made == 1 and not page.seen_steps:
            known_loops.suggest_adapter(sys._getframe(1))
        self._stopwatch.turn(now_ns)
        page.observe(made, now_ns - self._last_ns, now_ns)
        self._last_ns = now_ns

    def close(self) -> None:
        """Stop observing, and leave no hook."""
        self._hook.remove()
        self._stop()

    def _stop(self) -> None:
        if self._page is not None:
            self._page = None
            self._stopwatch.close()
            self._passes.close()
