"""Keep a script's own loop with DeepSpeed safe: `job = ft.deepspeed.attach(engine)` after deepspeed.initialize()."""

from ftlaunch_hooks.adapters.deepspeed.attaching import attach

__all__ = ["attach"]
