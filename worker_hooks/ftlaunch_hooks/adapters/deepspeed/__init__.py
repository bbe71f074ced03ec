"""DeepSpeed: `job = ft.deepspeed.attach(engine)` behind deepspeed.initialize()."""

from ftlaunch_hooks.adapters.deepspeed.attaching import attach

__all__ = ["attach"]
