"""Fabric: `job = ft.lightning.attach(fabric, model=model, optimizer=optimizer, loader=loader)` in a script's own loop.

What is private in Fabric is touched here and in fabric_loader.py. Fabric wraps modules, optimizers and loaders: what
is within the wrappers is attached.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.lightning import strategies
from ftlaunch_hooks.adapters.lightning.fabric_loader import FabricLoader
from ftlaunch_hooks.adapters.lightning.loggers import Loggers
from ftlaunch_hooks.adapters.refusal import check_first, check_members, check_ranks, check_saved, refuse
from ftlaunch_hooks.adapters.tried_versions import say_if_newer
from ftlaunch_hooks.observe.unsaved.epoch_loops import EpochLoops

_KNOWN = "Lightning 2.6"
_OF_FABRIC = "strategy world_size is_global_zero loggers setup setup_dataloaders"
_OPTIONS = ("frozen", "replicated", "anew", "keep", "ignore")  # of ft.attach(): no objects


def attach(fabric: Any, **objects: Any) -> ft.Job:
    """Attach what fabric.setup() and fabric.setup_dataloaders() have returned, and further objects, by name.

    objects: as ft.attach() takes them; loaders besides, whose positions are saved. The scaler of a precision is added.
    Raises AttachError for what cannot be kept safe, and what ft.attach() raises.
    """
    check_first("ft.lightning.attach()")
    say_if_newer()
    check_members(fabric, _OF_FABRIC, _KNOWN)
    strategies.check(fabric.strategy, fabric.world_size, "Fabric")
    options = {name: objects.pop(name) for name in _OPTIONS if name in objects}
    position = _Position(fabric, {name: one for name, one in objects.items() if _is(one, "_FabricDataLoader")})
    attached = {name: _unwrapped(name, one) for name, one in objects.items() if name not in position.loaders}
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None and all(one is not scaler for one in attached.values()):
        attached["scaler"] = scaler
    position.job = ft.attach(**attached, **options, fabric=position)
    position.go_on()
    return position.job


def _is(target: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(target).__mro__)


def _unwrapped(name: str, target: Any) -> Any:
    """What Fabric has wrapped."""
    if _is(target, "_FabricModule"):
        check_members(target, "_forward_module", _KNOWN)
        return target._forward_module  # under DDP that is DDP's wrapper
    if _is(target, "_FabricOptimizer"):
        return target.optimizer
    if isinstance(target, DataLoader):
        refuse(f"cannot attach: `{name}` is a DataLoader as it was made; give what fabric.setup_dataloaders() returns")
    return target


def _check_saved(saved: dict[str, Any]) -> None:
    check_saved(saved, "ranks loaders loggers", "Fabric")
    for loader in saved["loaders"].values():
        check_saved(loader, "iteration within seeds own held", "Fabric")
        if loader["within"] is not None:
            check_saved(loader["within"], "had made_at newest", "Fabric")


class _Position:
    """Where a script with Fabric is in its loaders and in its loggers' files."""

    job: ft.Job

    def __init__(self, fabric: Any, loaders: dict[str, Any]) -> None:
        self._fabric, self._saved = fabric, dict[str, Any]()
        self._epochs = EpochLoops(speaks=fabric.is_global_zero)
        self.loaders = {name: FabricLoader(one, self._epochs, self._arrived) for name, one in loaders.items()}
        self._loggers = Loggers(fabric)
        self.keeps_position_of = [loader.inner for loader in self.loaders.values()]

    def state_dict(self) -> dict[str, Any]:
        """At a boundary; within attach(), what it has restored."""
        if self._saved:
            return self._saved
        loaders = {name: loader.state() for name, loader in self.loaders.items()}
        return {"ranks": self._fabric.world_size, "loaders": loaders, "loggers": self._loggers.state()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """The loaders go to their batches when they are asked for the first one."""
        _check_saved(saved)
        check_ranks(saved["ranks"], self._fabric.world_size)
        if saved["loaders"].keys() != self.loaders.keys():
            refuse(
                f"cannot resume: the loaders {sorted(saved['loaders'])} were saved, and {sorted(self.loaders)} are"
                " attached now; attach the same ones, or give --fresh to start over"
            )
        self._saved = saved

    def go_on(self) -> None:
        """attach() has restored the rest, and knows the step."""
        if not self._saved:
            return
        self._loggers.restore(self._saved["loggers"], self.job.step)
        for name, loader in self.loaders.items():
            loader.go_on_from(self._saved["loaders"][name])
        self._saved = {}

    def _arrived(self) -> int:
        """A loader is at the batch that follows the boundary: its fetch draws what it would have drawn."""
        self.job.restore_rng()
        return self.job.step
