"""Save and restore what the callback StochasticWeightAveraging changes and does not put into Lightning's checkpoints.

From its first epoch on, the callback replaces the attached scheduler by its own. For a module with batch norm, it adds
an epoch that only recomputes the statistics of the averaged weights; during that epoch, it changes momenta, buffers
and the loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from ftlaunch_hooks.adapters.refusal import check_members

_KNOWN = "Lightning 2.6"
_NAME = "StochasticWeightAveraging"
_OF_CALLBACK = (
    "_initialized _swa_lrs _swa_scheduler _scheduler_state _annealing_epochs _annealing_strategy _average_model _device"
    " _init_n_averaged n_averaged momenta"
)


def check(trainer: Any) -> None:
    """Raise AttachError where this version's callback lacks a private part that is used."""
    for callback in _callbacks(trainer):
        check_members(callback, _OF_CALLBACK, _KNOWN)
        check_members(_home(callback), "SWALR LRSchedulerConfig", _KNOWN)
        check_members(trainer.fit_loop, "max_batches _skip_backward", _KNOWN)


def _callbacks(trainer: Any) -> Iterator[Any]:
    """Yield the Trainer's callbacks of this kind."""
    for callback in trainer.callbacks:
        if any(kind.__name__ == _NAME for kind in type(callback).__mro__):
            yield callback


def _home(callback: Any) -> Any:
    """Return Lightning's module of the callback's class, of whichever package the script uses."""
    [name] = [kind.__module__ for kind in type(callback).__mro__ if kind.__name__ == _NAME]
    return sys.modules[name]


def norms_of(trainer: Any) -> list[Any]:
    """Return the modules whose momenta the callback changes for an epoch; none without such a callback."""
    if any(True for _ in _callbacks(trainer)):
        return [module for module in trainer.lightning_module.modules() if "running_mean" in module._buffers]
    return []


def state(trainer: Any) -> list[dict[str, Any]]:
    """Return the state of each callback at a boundary."""
    return [_state_of(callback, trainer) for callback in _callbacks(trainer)]


def _state_of(callback: Any, trainer: Any) -> dict[str, Any]:
    """Return the state of one callback; the part for batch norm only during the epoch that the callback adds."""
    if not callback._initialized:
        return {"begun": False}
    norms = [(path, norm) for path, norm in trainer.lightning_module.named_modules() if norm in callback.momenta]
    momenta = {path: (callback.momenta[norm], norm.momentum) for path, norm in norms}
    found = {"begun": True, "rates": callback._swa_lrs, "momenta": momenta}
    if momenta:
        found["gathered"] = callback._accumulate_grad_batches
        found |= {"batches": trainer.fit_loop.max_batches, "skips": trainer.fit_loop._skip_backward}
    return found


def restore(trainer: Any, saved: list[dict[str, Any]]) -> None:
    """Restore the callbacks once the loops have resumed and the callbacks have loaded their part of a checkpoint."""
    module = trainer.lightning_module
    for callback, callback_state in zip(_callbacks(trainer), saved, strict=True):
        if not callback_state["begun"]:
            continue
        callback._initialized = True
        callback._swa_lrs = callback_state["rates"]
        callback._average_model = callback._average_model.to(callback._device or module.device)
        callback.n_averaged = torch.tensor(callback._init_n_averaged, dtype=torch.long, device=module.device)
        _put_scheduler_back(callback, trainer)
        if callback_state["momenta"]:
            _put_batch_norm_back(callback, trainer, callback_state)


def _put_scheduler_back(callback: Any, trainer: Any) -> None:
    """Make the callback's scheduler as the callback does, and undo what making it changes in the restored optimizer."""
    home = _home(callback)
    [optimizer] = trainer.optimizers
    before = [dict(group) for group in optimizer.param_groups]
    made = home.SWALR(
        optimizer,
        swa_lr=callback._swa_lrs,
        anneal_epochs=callback._annealing_epochs,
        anneal_strategy=callback._annealing_strategy,
    )
    made.load_state_dict(callback._scheduler_state)
    for group, values in zip(optimizer.param_groups, before, strict=True):
        group.update(values)
    callback._swa_scheduler = made
    trainer.lr_scheduler_configs[:] = [home.LRSchedulerConfig(made)]


def _put_batch_norm_back(callback: Any, trainer: Any, saved: dict[str, Any]) -> None:
    """Restore the momenta, buffers and loop settings of the epoch that recomputes batch norm statistics."""
    modules = dict(trainer.lightning_module.named_modules())
    for path, (before, now) in saved["momenta"].items():
        norm = modules[path]
        callback.momenta[norm] = before
        norm.momentum = now
        # The callback gives the module new buffers, which DistributedDataParallel does not know and does not broadcast.
        norm.running_mean = norm.running_mean.clone()
        norm.running_var = norm.running_var.clone()
    callback._accumulate_grad_batches = saved["gathered"]
    trainer.fit_loop.max_batches = saved["batches"]
    trainer.fit_loop._skip_backward = saved["skips"]
