"""PyTorch Lightning: `Trainer(callbacks=[ft.lightning.Callback()])` keeps fit() safe, attach() a loop with Fabric."""

from ftlaunch_hooks.adapters.lightning.callback import Callback
from ftlaunch_hooks.adapters.lightning.fabric import attach

__all__ = ["Callback", "attach"]
