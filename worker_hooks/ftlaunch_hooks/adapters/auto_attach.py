"""Functions that frameworks find by entry points: they attach to unmodified scripts under `--auto-attach`."""

from __future__ import annotations

import os
from typing import Any

from ftlaunch_contract import protocol


def lightning_callbacks() -> list[Any]:
    """Return callbacks for a Trainer of Lightning, which calls this entry point whenever a Trainer is made."""
    if os.environ.get(protocol.ENV_AUTO_ATTACH) != "1":
        return []
    from ftlaunch_hooks.adapters.lightning import Callback  # noqa: PLC0415 - it imports torch

    return [Callback(automatic=True)]
