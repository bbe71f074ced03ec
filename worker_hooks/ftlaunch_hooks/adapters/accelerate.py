"""Accelerate: `job = ft.accelerate.attach(accelerator)` attaches all that accelerator.prepare() was given.

What is private in Accelerate is touched in _check, _objects, _of_engine and _Loader. A DataLoaderShard reads one batch
ahead, and makes its iterator when its first batch is asked for: what is drawn there is drawn again as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.refusal import check_first, check_members, check_ranks, refuse, take_replicated
from ftlaunch_hooks.observe.unsaved.epoch_loops import EpochLoops
from ftlaunch_hooks.passes.draws import PERSISTENT, Draws
from ftlaunch_hooks.passes.newest_batch import NewestBatch
from ftlaunch_hooks.state.random_numbers import shared as random_numbers

_KNOWN = "Accelerate 1.15"
_OF_ACCELERATOR = (
    "_models _optimizers _schedulers _dataloaders _custom_objects scaler step gradient_state distributed_type"
)
_OF_LOADER = "begin end _update_state_dict iteration skip_batches end_of_dataloader base_dataloader"
_LATER = (
    "accelerator.prepare() was given more after ft.accelerate.attach(): that is not saved, and the run is not exact"
    " where training uses it; attach when all is prepared"
)
_KINDS = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED")


def attach(accelerator: Any, **more: Any) -> ft.Job:
    """Attach models, optimizers, schedulers, loaders' positions and registered objects. Call it after prepare().

    more: further objects, as ft.attach() takes them. Raises AttachError for what cannot be kept safe, and what
    ft.attach() raises.
    """
    check_first("ft.accelerate.attach()")
    _check(accelerator)
    position = _Position(accelerator)
    objects, replicated = _of_engine(accelerator) if _has_engine(accelerator) else (_objects(accelerator), [])
    replicated += take_replicated(more)
    position.job = ft.attach(**objects, **more, accelerate=position, replicated=replicated)
    return position.job


def _check(accelerator: Any) -> None:
    check_members(accelerator, f"{_OF_ACCELERATOR} distributed_type", _KNOWN)
    if (kind := accelerator.distributed_type.name) not in _KINDS:
        refuse(f"cannot attach to an accelerator of the distributed type {kind}: allowed are {', '.join(_KINDS)}")
    if not accelerator._models:
        refuse("cannot attach: accelerator.prepare() was given no model yet; attach after it")
    for loader in accelerator._dataloaders:
        if (name := type(loader).__name__) != "DataLoaderShard" or hasattr(loader.base_dataloader, "state_dict"):
            what = name if name != "DataLoaderShard" else "stateful loader"
            refuse(
                f"cannot attach: the position of a {what} is not saved; give DataLoaderConfiguration("
                "dispatch_batches=False, use_stateful_dataloader=False)"
            )
        check_members(loader, _OF_LOADER, _KNOWN)


def _prepared(accelerator: Any) -> list[int]:
    """How much there is of each kind."""
    kinds = accelerator._models, accelerator._optimizers, accelerator._schedulers, accelerator._dataloaders
    return [len(kind) for kind in (*kinds, accelerator._custom_objects)]


def _has_engine(accelerator: Any) -> bool:
    """Whether DeepSpeed's engine has the model, the optimizer, and its own schedulers."""
    return bool(accelerator.distributed_type.name == "DEEPSPEED")


def _of_engine(accelerator: Any) -> tuple[dict[str, Any], list[str]]:
    from ftlaunch_hooks.adapters.deepspeed.attaching import kept  # noqa: PLC0415 - it imports DeepSpeed

    if len(accelerator._models) != 1:
        refuse(f"cannot attach: DeepSpeed has {len(accelerator._models)} engines here; allowed is one")
    [engine] = accelerator._models
    objects, replicated = kept(engine, lambda: int(not accelerator.sync_gradients))
    schedulers = [] if engine.lr_scheduler is not None else [one.scheduler for one in accelerator._schedulers]
    return {**objects, **_numbered(scheduler=schedulers, registered=accelerator._custom_objects)}, replicated


def _objects(accelerator: Any) -> dict[str, Any]:
    return _numbered(
        model=accelerator._models,
        optimizer=[one.optimizer for one in accelerator._optimizers],
        scheduler=[one.scheduler for one in accelerator._schedulers],
        scaler=[accelerator.scaler] if accelerator.scaler is not None else [],
        registered=accelerator._custom_objects,
    )


def _numbered(**named: Sequence[Any]) -> dict[str, Any]:
    return {
        f"{name}_{number}" if number else name: target
        for name, targets in named.items()
        for number, target in enumerate(targets)
    }


class _Position:
    """Where an accelerator is: in its loaders, and in gathering gradients."""

    job: ft.Job

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._epochs = EpochLoops(speaks=accelerator.is_main_process)
        self._loaders = [_Loader(loader, self._epochs, self._arrived) for loader in accelerator._dataloaders]
        self._prepared = _prepared(accelerator)
        self.keeps_position_of = [loader.base_dataloader for loader in accelerator._dataloaders]

    def state_dict(self) -> dict[str, Any]:
        """At a boundary."""
        if _prepared(self._accelerator) != self._prepared:
            self._epochs.say_once(_LATER)
        synced = self._accelerator.gradient_state.sync_gradients
        loaders = [loader.state() for loader in self._loaders]
        ranks = self._accelerator.num_processes
        return {"ranks": ranks, "step": self._accelerator.step, "synced": synced, "loaders": loaders}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """The loaders go to their batches when they are asked for the first one."""
        check_ranks(saved["ranks"], self._accelerator.num_processes)
        self._accelerator.step = saved["step"]
        self._accelerator.gradient_state.sync_gradients = saved["synced"]
        for loader, one in zip(self._loaders, saved["loaders"], strict=True):
            loader.go_on_from(one)

    def _arrived(self) -> int:
        self.job.restore_rng()
        return self.job.step


class _Loader:
    """Follows a DataLoaderShard, and brings it back to a batch.

    The shard calls begin() as a pass over its data begins, end() as it ends, and _update_state_dict() before each fetch
    of the batch that follows the one to be handed out; at the end of the data once more.
    """

    def __init__(self, loader: Any, epochs: EpochLoops, arrived: Callable[[], int]) -> None:
        """epochs: is told of each pass. arrived: called before the fetch behind the boundary; returns its step."""
        self._loader, self._epochs, self._arrived = loader, epochs, arrived
        self._draws, self._newest = Draws(loader), NewestBatch()
        self._begin, self._end, self._update = loader.begin, loader.end, loader._update_state_dict
        self._fetches = 0  # of this pass, without the first
        self._passes = False  # a pass is under way
        self._began_at: random_numbers.State | None = None
        self._ahead_at: deque[random_numbers.Raw] = deque(maxlen=3)  # before the newest fetches of this pass
        self._saved: dict[str, Any] | None = None
        loader.begin, loader.end, loader._update_state_dict = self._begins, self._ends, self._fetches_next
        base = loader.base_dataloader  # the shard asks it for its iterator by this name
        base.__iter__ = lambda: self._newest.of(type(base).__iter__(base))

    def state(self) -> dict[str, Any]:
        """At a boundary; until a pass has gone on from where the loader was, that is still where it is."""
        if self._saved is not None:
            return self._saved
        ended = self._loader.end_of_dataloader  # then the newest two fetches have brought nothing
        before = 3 if ended else 1
        ahead = random_numbers.to_save(self._ahead_at[-before]) if len(self._ahead_at) >= before else None
        place = {"had": self._fetches - ended, "began_at": self._began_at, "ahead_at": ahead, "ended": ended}
        within = {**place, "sample": self._newest.sample()} if self._passes else None
        return {"iteration": self._loader.iteration, "within": within, **self._draws.own()}

    def go_on_from(self, saved: dict[str, Any]) -> None:
        """The next pass begins at the batch that the boundary was before."""
        self._saved = saved if saved["within"] is not None else None
        self._loader.iteration = saved["iteration"]
        self._draws.put_back_seeds(saved)
        if self._saved is None:  # else the pass begins as it had begun: some may not have been made then
            self._draws.put_back_own(saved)

    def _begins(self) -> None:
        self._begin()
        self._epochs.begins(self._loader.iteration)
        self._fetches, self._passes = 0, True
        self._ahead_at.clear()
        if self._saved is None:
            self._began_at = self._draws.read()
            self._loader.skip_batches = 0
        else:
            if self._saved["iteration"] and getattr(self._loader.base_dataloader, "persistent_workers", False):
                self._epochs.say_once(PERSISTENT)
            self._began_at = self._saved["within"]["began_at"]
            self._loader.skip_batches = self._saved["within"]["had"]
            self._draws.put_back(self._began_at)

    def _fetches_next(self) -> None:
        self._update()
        if self._saved is not None:
            self._go_back(self._saved)
        self._ahead_at.append(random_numbers.read_raw())
        self._fetches += 1

    def _go_back(self, saved: dict[str, Any]) -> None:
        """The batch of the boundary was read one batch ahead of it, and the one that follows behind it."""
        within = saved["within"]
        left = within["had"] - self._fetches
        if left == 1 + within["ended"] and within["ahead_at"] is not None:
            random_numbers.put_back(within["ahead_at"])
        if left == 0:
            self._saved = None
            self._newest.compare(within["sample"])
            self._draws.put_back_own(saved)
            step = self._arrived()
            if self._loader.end_of_dataloader:
                self._epochs.is_empty(step)
            else:
                self._epochs.goes_on(within["had"])

    def _ends(self) -> None:
        self._passes = False
        self._loader.skip_batches = 0
        self._end()
