"""Keep torchtitan's trainings safe by a checkpointer.

Name `checkpoint=ft.torchtitan.CheckpointManager.Config()` in a Trainer's config, or use the override (override.py).
"""

from importlib.metadata import version

from ftlaunch_hooks.adapters.refusal import refuse

try:
    from ftlaunch_hooks.adapters.torchtitan.manager import CheckpointManager
except ModuleNotFoundError as error:
    if not str(error.name).startswith("torchtitan."):
        raise
    refuse(
        f"cannot keep this training: torchtitan {version('torchtitan')} has no module {error.name}, which"
        " torchtitan 0.3 has; install a version that is known, or train without ft.torchtitan"
    )

__all__ = ["CheckpointManager"]
