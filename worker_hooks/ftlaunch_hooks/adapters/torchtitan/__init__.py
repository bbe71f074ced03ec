"""torchtitan: `checkpoint=ft.torchtitan.CheckpointManager.Config()` in a Trainer's config, or an override by name."""

from ftlaunch_hooks.adapters.torchtitan.manager import CheckpointManager

__all__ = ["CheckpointManager"]
