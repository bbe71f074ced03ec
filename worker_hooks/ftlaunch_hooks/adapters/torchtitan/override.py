"""Keep a training with an unmodified config safe by torchtitan's overrides.

The option is `--override.imports ftlaunch_hooks.adapters.torchtitan.override.keep_safe`.
"""

from __future__ import annotations

from typing import Any

import torchtitan.components.checkpointer as titan
from torchtitan.config.override import derive, override

from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.adapters.torchtitan.manager import CheckpointManager


@override(target=titan.BaseCheckpointManager.Config, description="ftlaunch's checkpointer")  # type: ignore[untyped-decorator]
def keep_safe(config: Any) -> Any:
    """Return the config of our checkpointer, with the options of `config`. Raises AttachError for an unknown config."""
    if isinstance(config, CheckpointManager.Config):
        return config
    if type(config) is not titan.CheckpointManager.Config:
        refuse(
            f"cannot take the place of {type(config).__qualname__}: known is torchtitan's CheckpointManager; name"
            " ft.torchtitan.CheckpointManager.Config as `checkpoint` in the config"
        )
    return derive(config, CheckpointManager.Config, enable=True, snapshots_only=not config.enable)
