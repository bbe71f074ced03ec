"""Wrap every Transformers Trainer of an unmodified script, under `--auto-attach`.

The import hook (programs/import_hook.py) calls `imported`. This module imports no torch, because it is loaded before
the script has chosen to.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ftlaunch_hooks.process import bootstrap
from ftlaunch_hooks.process.say import say


def imported(module: ModuleType) -> None:
    """Have each Trainer wrapped when it is made, in a rank of a supervisor.

    Args:
        module: transformers.trainer, which has just been imported.
    """
    if bootstrap.own_page() is None:
        return
    make = module.Trainer.__init__

    @functools.wraps(make)
    def make_and_wrap(trainer: Any, *args: Any, **kwargs: Any) -> None:
        make(trainer, *args, **kwargs)
        _wrap(trainer)

    module.Trainer.__init__ = make_and_wrap


def _wrap(trainer: Any) -> None:
    """Wrap a Trainer, or report on rank 0 why that is refused."""
    from ftlaunch_hooks.adapters.transformers import wrap  # noqa: PLC0415 - the script has imported torch now

    name = type(trainer).__name__
    speaks = trainer.is_world_process_zero()
    try:
        wrap(trainer)
    except RuntimeError as error:
        if speaks:
            say(f"{error}; {name} runs as it is, and a restart begins at its first step")
        return
    if speaks:
        say(f"--auto-attach: {name}.train() is kept safe: its model, optimizer, scheduler, data position and logs")
