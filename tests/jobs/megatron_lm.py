"""Stands for Megatron-LM's `megatron.training.checkpointing`, of which no package index has a release.

It has what the adapter uses of it: the arguments, load_checkpoint() and save_checkpoint(), and the number of micro
batches. `old` is the one of 2023, which counts no floating point operations.
"""

import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def install(args: Namespace, *, old: bool = False) -> ModuleType:
    """Have it among the imported modules."""
    module = ModuleType("megatron.checkpointing" if old else "megatron.training.checkpointing")

    def save(iteration: int, model: Any, optimizer: Any, scheduler: Any, *operations: float) -> None:
        state = [chunk.state_dict() for chunk in model]
        saved = {"iteration": iteration, "model": state, "operations": operations, "counted": vars(args)}
        torch.save(saved, Path(args.load, "checkpoint.pt"))

    def save_checkpoint(
        iteration: int, model: Any, optimizer: Any, opt_param_scheduler: Any, num_floating_point_operations_so_far: Any
    ) -> None:
        save(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far)

    def load_checkpoint(model: Any, optimizer: Any, scheduler: Any, load_arg: str = "load", strict: bool = True) -> Any:
        path = Path(getattr(args, load_arg), "checkpoint.pt")
        if not path.exists():
            return 0 if old else (0, 0)
        saved = torch.load(path, weights_only=False)
        for chunk, state in zip(model, saved["model"], strict=True):
            chunk.load_state_dict(state, strict=strict)
        args.consumed_train_samples = saved["counted"]["consumed_train_samples"]
        return saved["iteration"] if old else (saved["iteration"], *saved["operations"])

    def update_num_microbatches(consumed_samples: int) -> None:
        args.microbatches_of = consumed_samples

    module.get_args = lambda: args  # type: ignore[attr-defined]
    module.save_checkpoint = save if old else save_checkpoint  # type: ignore[attr-defined]
    module.load_checkpoint = load_checkpoint  # type: ignore[attr-defined]
    module.update_num_microbatches = update_num_microbatches  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return module
