"""Wraps the Trainer of a script that knows nothing of these hooks, where `--auto-attach` asks for it. No torch here."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ftlaunch_hooks.process import bootstrap
from ftlaunch_hooks.process.say import say


def imported(module: ModuleType) -> None:
    """transformers.trainer has been imported: every Trainer is wrapped as it is made, in a supervisor's rank."""
    if bootstrap.own_page() is None:
        return
    make = module.Trainer.__init__

    @functools.wraps(make)
    def make_and_wrap(trainer: Any, *args: Any, **kwargs: Any) -> None:
        make(trainer, *args, **kwargs)
        _wrap(trainer)

    module.Trainer.__init__ = make_and_wrap


def _wrap(trainer: Any) -> None:
    from ftlaunch_hooks.adapters.transformers import wrap  # noqa: PLC0415 - the script has imported torch now

    name, speaks = type(trainer).__name__, trainer.is_world_process_zero()
    try:
        wrap(trainer)
    except RuntimeError as error:
        if speaks:
            say(f"{error}; {name} runs as it is, and a restart begins at its first step")
        return
    if speaks:
        say(f"--auto-attach: {name}.train() is kept safe: its model, optimizer, scheduler, data position and logs")
