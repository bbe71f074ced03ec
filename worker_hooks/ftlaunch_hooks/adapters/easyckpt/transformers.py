"""EasyCkpt's `TrainerWrapper` for Hugging Face's Trainer, which is `ft.transformers.wrap` under EasyCkpt's name."""

from ftlaunch_hooks.adapters.transformers import TrainerWrapper

__all__ = ["TrainerWrapper"]
