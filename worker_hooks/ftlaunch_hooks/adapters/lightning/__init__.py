"""Keep trainings with PyTorch Lightning safe.

`Trainer(callbacks=[ft.lightning.Callback()])` keeps Trainer.fit() safe (callback.py, fit.py), and
`ft.lightning.attach(fabric, ...)` a script's own loop with Fabric (fabric.py). Everything runs on the main thread of
each rank.
"""

from ftlaunch_hooks.adapters.lightning.callback import Callback
from ftlaunch_hooks.adapters.lightning.fabric import attach

__all__ = ["Callback", "attach"]
