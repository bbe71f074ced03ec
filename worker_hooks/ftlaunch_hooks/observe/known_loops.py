"""Suggests the adapter of the running training loop, where the loop runs without attach().

`optimizer_steps` calls `suggest_adapter` at a rank's first optimizer step.
"""

from __future__ import annotations

import os
from types import FrameType

from ftlaunch_hooks.process.say import say

_LIGHTNING = "Lightning's fit()", "Trainer(callbacks=[ft.lightning.Callback()])"
_ADAPTERS = {
    "transformers.trainer": ("Hugging Face's Trainer", "trainer = ft.transformers.wrap(trainer)"),
    "lightning.pytorch.loops.fit_loop": _LIGHTNING,
    "pytorch_lightning.loops.fit_loop": _LIGHTNING,
}


def suggest_adapter(frame: FrameType | None) -> None:
    """Write a sentence to the log where a known loop is among the callers of `frame`. Only rank 0 writes.

    Args:
        frame: the frame in which an optimizer has stepped.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    while frame is not None:
        if (known := _ADAPTERS.get(str(frame.f_globals.get("__name__")))) is not None:
            loop, line = known
            say(
                f"{loop} runs without snapshots: a restart begins at its first step; --auto-attach keeps it safe as it"
                f" is, and so does `{line}` in the script"
            )
            return
        frame = frame.f_back
