"""EasyCkpt's `TrainerWrapper` for Hugging Face's Trainer: `ft.transformers.wrap`, and what the arguments mean here."""

from __future__ import annotations

from typing import Any

from ftlaunch_hooks.adapters.transformers import wrap
from ftlaunch_hooks.process.say import say

__all__ = ["TrainerWrapper"]


def TrainerWrapper(trainer: Any) -> Any:  # noqa: N802 - EasyCkpt's name
    """See ft.transformers.wrap(); a line says what is done with the Trainer's arguments for checkpoints."""
    wrapped = wrap(trainer)
    if trainer.is_world_process_zero():
        say(_answer(trainer.args))
    return wrapped


def _answer(args: Any) -> str:
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    resumes = "the job resumes from its own, which are the supervisor's (--memory-interval, --storage-interval, --keep)"
    if strategy == "no":
        return f"TrainerWrapper: save_strategy='no': the Trainer writes no checkpoints; {resumes}"
    every = f", save_steps={args.save_steps}" if strategy == "steps" else ""
    return (
        f"TrainerWrapper: save_strategy={strategy!r}{every}, save_total_limit={args.save_total_limit}: the Trainer"
        f" writes these checkpoints as ever, and training waits for them; {resumes}, and needs none of these:"
        " save_strategy='no' leaves them out"
    )
