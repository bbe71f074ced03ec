"""Keep a script's own loop with Fabric safe: `job = ft.lightning.attach(fabric, model=..., optimizer=..., loader=...)`.

Fabric wraps modules, optimizers and loaders; the objects within the wrappers are attached. Only this module and
fabric_loader.py touch what is private in Fabric.
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
_OPTIONS = ("frozen", "replicated", "anew", "keep", "ignore")  # keywords of ft.attach() that are no objects


def attach(fabric: Any, **objects: Any) -> ft.Job:
    """Attach what fabric.setup() and fabric.setup_dataloaders() returned, and further objects. Call this once.

    Args:
        fabric: the Fabric.
        objects: by name, anything that ft.attach() takes, and loaders, whose positions are saved. The scaler of the
            precision is added.

    Returns:
        The job.

    Raises:
        AttachError: something cannot be kept safe or restored.
    """
    check_first("ft.lightning.attach()")
    say_if_newer()
    check_members(fabric, _OF_FABRIC, _KNOWN)
    strategies.check(fabric.strategy, fabric.world_size, "Fabric")
    options = {name: objects.pop(name) for name in _OPTIONS if name in objects}
    loaders = {name: target for name, target in objects.items() if _is(target, "_FabricDataLoader")}
    position = _Position(fabric, loaders)
    attached = {name: _unwrapped(name, target) for name, target in objects.items() if name not in loaders}
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None and all(target is not scaler for target in attached.values()):
        attached["scaler"] = scaler
    position.job = ft.attach(**attached, **options, fabric=position)
    position.go_on()
    return position.job


def _is(target: Any, name: str) -> bool:
    """Whether an object is of the class `name`, of which Lightning has one in each of its two packages."""
    return any(kind.__name__ == name for kind in type(target).__mro__)


def _unwrapped(name: str, target: Any) -> Any:
    """Return the object within Fabric's wrapper. Raises AttachError for a DataLoader that Fabric has not set up."""
    if _is(target, "_FabricModule"):
        check_members(target, "_forward_module", _KNOWN)
        return target._forward_module  # with DDP, DDP's wrapper of the module
    if _is(target, "_FabricOptimizer"):
        return target.optimizer
    if isinstance(target, DataLoader):
        refuse(f"cannot attach: `{name}` is a DataLoader as it was made; give what fabric.setup_dataloaders() returns")
    return target


def _check_saved(saved: dict[str, Any]) -> None:
    """Raise AttachError for a state that an earlier version of this adapter saved."""
    check_saved(saved, "ranks loaders loggers", "Fabric")
    for loader in saved["loaders"].values():
        check_saved(loader, "iteration within seeds own held", "Fabric")
        if loader["within"] is not None:
            check_saved(loader["within"], "had made_at newest", "Fabric")


class _Position:
    """The position of a script in its loaders and in its loggers' files: an object to attach."""

    job: ft.Job
    """set after attach()"""

    def __init__(self, fabric: Any, loaders: dict[str, Any]) -> None:
        self._fabric = fabric
        self._saved: dict[str, Any] = {}
        self._epochs = EpochLoops(speaks=fabric.is_global_zero)
        self.loaders = {name: FabricLoader(loader, self._epochs, self._arrived) for name, loader in loaders.items()}
        self._loggers = Loggers(fabric)
        self.keeps_position_of = [loader.inner for loader in self.loaders.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return the position at a boundary; within attach(), the position that attach() has restored."""
        if self._saved:
            return self._saved
        loaders = {name: loader.state() for name, loader in self.loaders.items()}
        return {"ranks": self._fabric.world_size, "loaders": loaders, "loggers": self._loggers.state()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Check a saved position, which `go_on` restores later. Raises AttachError."""
        _check_saved(saved)
        check_ranks(saved["ranks"], self._fabric.world_size)
        if saved["loaders"].keys() != self.loaders.keys():
            refuse(
                f"cannot resume: the loaders {sorted(saved['loaders'])} were saved, and {sorted(self.loaders)} are"
                " attached now; attach the same ones, or give --fresh to start over"
            )
        self._saved = saved

    def go_on(self) -> None:
        """Restore the position, after attach() has restored everything else.

        The loaders move to their batches when their first batch is asked for.
        """
        if not self._saved:
            return
        self._loggers.restore(self._saved["loggers"], self.job.step)
        for name, loader in self.loaders.items():
            loader.go_on_from(self._saved["loaders"][name])
        self._saved = {}

    def _arrived(self) -> int:
        """Put the random numbers of the boundary back, before a loader fetches the batch after it. Return the step."""
        self.job.restore_rng()
        return self.job.step
