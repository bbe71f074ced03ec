"""EasyCkpt's calls for Megatron-LM: load_checkpoint(), initialize_easyckpt() and save_checkpoint_if_needed()."""

from ftlaunch_hooks.adapters.easyckpt.megatron.calls import (
    initialize_easyckpt,
    load_checkpoint,
    save_checkpoint_if_needed,
)

__all__ = ["initialize_easyckpt", "load_checkpoint", "save_checkpoint_if_needed"]
