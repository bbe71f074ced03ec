"""PyTorch Lightning: `Trainer(callbacks=[ft.lightning.Callback()])` keeps fit() safe, and goes on at its step."""

from ftlaunch_hooks.adapters.lightning.callback import Callback

__all__ = ["Callback"]
