"""StochasticWeightAveraging: what it changes while it trains, beside what it puts into Lightning's own checkpoints.

From its first epoch on it has a scheduler of its own in the place of the one that was attached. Where the module has
batch norm, it adds an epoch in which the averaged weights are in the module, and nothing but the statistics is made
anew: for its time it changes momenta, buffers, and the loop.
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
    """Raises AttachError where the callback is not as this file knows it."""
    for callback in _callbacks(trainer):
        check_members(callback, _OF_CALLBACK, _KNOWN)
        check_members(_home(callback), "SWALR LRSchedulerConfig", _KNOWN)
        check_members(trainer.fit_loop, "max_batches _skip_backward", _KNOWN)


def _callbacks(trainer: Any) -> Iterator[Any]:
    return (one for one in trainer.callbacks if any(kind.__name__ == _NAME for kind in type(one).__mro__))


def _home(callback: Any) -> Any:
    """Lightning's module of the callback."""
    [name] = [kind.__module__ for kind in type(callback).__mro__ if kind.__name__ == _NAME]
    return sys.modules[name]


def norms_of(trainer: Any) -> list[Any]:
    """Return the modules whose momenta the callback changes for a time; none where there is no such callback."""
    if any(True for _ in _callbacks(trainer)):
        return [one for one in trainer.lightning_module.modules() if "running_mean" in one._buffers]
    return []


def state(trainer: Any) -> list[dict[str, Any]]:
    """At a boundary."""
    return [_of(callback, trainer) for callback in _callbacks(trainer)]


def _of(callback: Any, trainer: Any) -> dict[str, Any]:
    if not callback._initialized:
        return {"begun": False}
    named = trainer.lightning_module.named_modules()
    momenta = {path: (callback.momenta[one], one.momentum) for path, one in named if one in callback.momenta}
    found = {"begun": True, "rates": callback._swa_lrs, "momenta": momenta}
    if momenta:
        found["gathered"] = callback._accumulate_grad_batches
        found |= {"batches": trainer.fit_loop.max_batches, "skips": trainer.fit_loop._skip_backward}
    return found


def restore(trainer: Any, saved: list[dict[str, Any]]) -> None:
    """Where the loops are as they were; the callback has loaded what it had put into a checkpoint."""
    module = trainer.lightning_module
    for callback, one in zip(_callbacks(trainer), saved, strict=True):
        if not one["begun"]:
            continue
        callback._initialized, callback._swa_lrs = True, one["rates"]
        callback._average_model = callback._average_model.to(callback._device or module.device)
        callback.n_averaged = torch.tensor(callback._init_n_averaged, dtype=torch.long, device=module.device)
        _put_scheduler_back(callback, trainer)
        if one["momenta"]:
            _put_batch_norm_back(callback, trainer, one)


def _put_scheduler_back(callback: Any, trainer: Any) -> None:
    """As the callback makes it; a scheduler that is made changes the optimizer, which has been restored."""
    home, [optimizer] = _home(callback), trainer.optimizers
    before = [dict(group) for group in optimizer.param_groups]
    made = home.SWALR(optimizer, callback._swa_lrs, callback._annealing_epochs, callback._annealing_strategy)
    made.load_state_dict(callback._scheduler_state)
    for group, values in zip(optimizer.param_groups, before, strict=True):
        group.update(values)
    callback._swa_scheduler = made
    trainer.lr_scheduler_configs[:] = [home.LRSchedulerConfig(made)]


def _put_batch_norm_back(callback: Any, trainer: Any, saved: dict[str, Any]) -> None:
    modules = dict(trainer.lightning_module.named_modules())
    for path, (before, now) in saved["momenta"].items():
        norm = modules[path]
        callback.momenta[norm], norm.momentum = before, now
        # the callback gives the module other buffers, which DistributedDataParallel does not know, and leaves alone
        norm.running_mean, norm.running_var = norm.running_mean.clone(), norm.running_var.clone()
    callback._accumulate_grad_batches = saved["gathered"]
    trainer.fit_loop.max_batches, trainer.fit_loop._skip_backward = saved["batches"], saved["skips"]
