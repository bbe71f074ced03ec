"""Keep a script's own loop with Accelerate safe: `job = ft.accelerate.attach(accelerator)` after accelerator.prepare().

Only _check, _objects, _of_engine and _Loader touch what is private in Accelerate. A DataLoaderShard reads one batch
ahead, and makes its iterator when its first batch is asked for; after a resume both happen from the same random numbers
as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.refusal import (
    check_first,
    check_members,
    check_ranks,
    check_saved,
    pop_replicated,
    refuse,
)
from ftlaunch_hooks.adapters.tried_versions import say_if_newer
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
    """Attach models, optimizers, schedulers, loaders' positions and registered objects.

    Call this once, after prepare().

    Args:
        accelerator: the Accelerator.
        more: further objects and options, as ft.attach() takes them.

    Returns:
        The job.

    Raises:
        AttachError: something cannot be kept safe or restored.
    """
    check_first("ft.accelerate.attach()")
    say_if_newer()
    _check(accelerator)
    position = _Position(accelerator)
    replicated: list[str] = []
    if _has_engine(accelerator):
        objects, replicated = _of_engine(accelerator)
    else:
        objects = _objects(accelerator)
    replicated += pop_replicated(more)
    position.job = ft.attach(**objects, **more, accelerate=position, replicated=replicated)
    return position.job


def _check(accelerator: Any) -> None:
    """Raise AttachError for an accelerator or a loader that cannot be kept safe."""
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


def _check_saved(saved: dict[str, Any]) -> None:
    """Raise AttachError for a state that an earlier version of this adapter saved."""
    check_saved(saved, "ranks step synced loaders", "Accelerate")
    for loader in saved["loaders"]:
        check_saved(loader, "iteration within seeds own held", "Accelerate")
        if loader["within"] is not None:
            check_saved(loader["within"], "had began_at ended ahead_at sample", "Accelerate")


def _prepared(accelerator: Any) -> list[int]:
    """Return the numbers of prepared objects, by kind, to notice later ones."""
    kinds = [
        accelerator._models,
        accelerator._optimizers,
        accelerator._schedulers,
        accelerator._dataloaders,
        accelerator._custom_objects,
    ]
    return [len(kind) for kind in kinds]


def _has_engine(accelerator: Any) -> bool:
    """Whether DeepSpeed's engine holds the model and the optimizer."""
    return bool(accelerator.distributed_type.name == "DEEPSPEED")


def _of_engine(accelerator: Any) -> tuple[dict[str, Any], list[str]]:
    """Return what is attached with DeepSpeed, by name, and the names of replicated objects. Raises AttachError."""
    from ftlaunch_hooks.adapters.deepspeed.attaching import kept  # noqa: PLC0415 - it imports DeepSpeed

    if len(accelerator._models) != 1:
        refuse(f"cannot attach: DeepSpeed has {len(accelerator._models)} engines here; allowed is one")
    [engine] = accelerator._models
    objects, replicated = kept(engine, lambda: int(not accelerator.sync_gradients))
    schedulers = []
    if engine.lr_scheduler is None:
        schedulers = [wrapper.scheduler for wrapper in accelerator._schedulers]
    return {**objects, **_numbered(scheduler=schedulers, registered=accelerator._custom_objects)}, replicated


def _objects(accelerator: Any) -> dict[str, Any]:
    """Return what is attached without DeepSpeed, by name: the objects within Accelerate's wrappers."""
    return _numbered(
        model=accelerator._models,
        optimizer=[wrapper.optimizer for wrapper in accelerator._optimizers],
        scheduler=[wrapper.scheduler for wrapper in accelerator._schedulers],
        scaler=[accelerator.scaler] if accelerator.scaler is not None else [],
        registered=accelerator._custom_objects,
    )


def _numbered(**named: Sequence[Any]) -> dict[str, Any]:
    """Return all objects under names of their own: `model`, `model_1`, `model_2` ..."""
    return {
        f"{name}_{number}" if number else name: target
        for name, targets in named.items()
        for number, target in enumerate(targets)
    }


class _Position:
    """The position of an accelerator in its loaders and in accumulating gradients: an object to attach."""

    job: ft.Job
    """set after attach()"""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._epochs = EpochLoops(speaks=accelerator.is_main_process)
        self._loaders = [_Loader(loader, self._epochs, self._arrived) for loader in accelerator._dataloaders]
        self._prepared = _prepared(accelerator)
        self.keeps_position_of = [loader.base_dataloader for loader in accelerator._dataloaders]

    def state_dict(self) -> dict[str, Any]:
        """Return the position at a boundary, and warn of objects that were prepared after attach()."""
        if _prepared(self._accelerator) != self._prepared:
            self._epochs.say_once(_LATER)
        synced = self._accelerator.gradient_state.sync_gradients
        loaders = [loader.state() for loader in self._loaders]
        ranks = self._accelerator.num_processes
        return {"ranks": ranks, "step": self._accelerator.step, "synced": synced, "loaders": loaders}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a position. Loaders move to their batches when their first batch is asked for. Raises AttachError."""
        _check_saved(saved)
        check_ranks(saved["ranks"], self._accelerator.num_processes)
        self._accelerator.step = saved["step"]
        self._accelerator.gradient_state.sync_gradients = saved["synced"]
        for loader, place in zip(self._loaders, saved["loaders"], strict=True):
            loader.go_on_from(place)

    def _arrived(self) -> int:
        """Put the random numbers of the boundary back, before a loader fetches the batch after it. Return the step."""
        self.job.restore_rng()
        return self.job.step


class _Loader:
    """Follows the passes over a DataLoaderShard, and brings the shard back to a batch.

    The shard calls its begin() as a pass begins, end() as the pass ends, and _update_state_dict() before each fetch of
    the batch that follows the one to be handed out, and once more at the end of the data.
    """

    def __init__(self, loader: Any, epochs: EpochLoops, arrived: Callable[[], int]) -> None:
        """Replace these three methods of the shard.

        Args:
            loader: the shard.
            epochs: is told of each pass.
            arrived: called before the first fetch after the boundary of a resume; returns the boundary's step.
        """
        self._loader = loader
        self._epochs = epochs
        self._arrived = arrived
        self._draws = Draws(loader)
        self._newest = NewestBatch()
        self._begin = loader.begin
        self._end = loader.end
        self._update = loader._update_state_dict
        self._fetches = 0  # number of fetches in this pass, without the first
        self._passes = False  # whether a pass is under way
        self._began_at: random_numbers.State | None = None  # the generators as the pass began
        self._ahead_at: deque[random_numbers.Raw] = deque(maxlen=3)  # the generators before the pass's newest fetches
        self._saved: dict[str, Any] | None = None  # the place to which the next pass has to go
        loader.begin = self._begins
        loader.end = self._ends
        loader._update_state_dict = self._fetches_next
        base = loader.base_dataloader  # under this name the shard asks for its iterator
        base.__iter__ = lambda: self._newest.of(type(base).__iter__(base))

    def state(self) -> dict[str, Any]:
        """Return the place at a boundary. Until a pass has resumed at the saved place, this is the saved place."""
        if self._saved is not None:
            return self._saved
        ended = self._loader.end_of_dataloader  # if so, the newest two fetches have brought nothing
        before = 3 if ended else 1
        ahead = random_numbers.to_save(self._ahead_at[-before]) if len(self._ahead_at) >= before else None
        place = {"had": self._fetches - ended, "began_at": self._began_at, "ahead_at": ahead, "ended": ended}
        within = {**place, "sample": self._newest.sample()} if self._passes else None
        return {"iteration": self._loader.iteration, "within": within, **self._draws.own()}

    def go_on_from(self, saved: dict[str, Any]) -> None:
        """Have the next pass begin at the batch that follows the boundary of the state `saved`."""
        self._saved = saved if saved["within"] is not None else None
        self._loader.iteration = saved["iteration"]
        self._draws.put_back_seeds(saved)
        if self._saved is None:  # otherwise _go_back restores these: some may have been made after the pass began
            self._draws.put_back_own(saved)

    def _begins(self) -> None:
        """Begin a pass (begin()): have the shard skip the batches before the saved place, if there is one."""
        self._begin()
        self._epochs.begins(self._loader.iteration)
        self._fetches = 0
        self._passes = True
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
        """Note the generators before a fetch (_update_state_dict())."""
        self._update()
        if self._saved is not None:
            self._go_back(self._saved)
        self._ahead_at.append(random_numbers.read_raw())
        self._fetches += 1

    def _go_back(self, saved: dict[str, Any]) -> None:
        """Put the generators back before the two fetches around the boundary.

        The batch that follows the boundary was read ahead, before the boundary; the batch after that one is read after
        the boundary.
        """
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
        """End a pass (end())."""
        self._passes = False
        self._loader.skip_batches = 0
        self._end()
