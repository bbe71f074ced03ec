"""Entry points of frameworks: scripts that know nothing of us are kept safe where the supervisor was asked for it."""

from __future__ import annotations

import os
from typing import Any

from ftlaunch_contract import protocol


def lightning_callbacks() -> list[Any]:
    """Lightning asks for it whenever a Trainer is made, and adds what it is given to the Trainer's callbacks."""
    if os.environ.get(protocol.ENV_AUTO_ATTACH) != "1":
        return []
    from ftlaunch_hooks.adapters.lightning import Callback  # noqa: PLC0415 - it imports torch

    return [Callback(automatic=True)]
