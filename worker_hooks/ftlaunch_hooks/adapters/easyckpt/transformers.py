"""EasyCkpt's `TrainerWrapper` for Hugging Face's Trainer: `ft.transformers.wrap` under its name."""

from ftlaunch_hooks.adapters.transformers import TrainerWrapper

__all__ = ["TrainerWrapper"]
