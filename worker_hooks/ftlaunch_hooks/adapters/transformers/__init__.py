"""Hugging Face's Trainer: `trainer = ft.transformers.wrap(trainer)`, and then `trainer.train()` as always."""

from ftlaunch_hooks.adapters.transformers.wrapping import TrainerWrapper, wrap

__all__ = ["TrainerWrapper", "wrap"]
