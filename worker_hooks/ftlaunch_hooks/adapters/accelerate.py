"""Accelerate: `job = ft.accelerate.attach(accelerator)` attaches all that accelerator.prepare() was given.

What is private in Accelerate is touched in _check, _objects and _Loader. A DataLoaderShard reads one batch ahead, and
makes its iterator when its first batch is asked for: what is drawn there is drawn again as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters import random_numbers
from ftlaunch_hooks.adapters.refusal import check_members, check_ranks, refuse
from ftlaunch_hooks.observe.unsaved.loop_places import asks_for_step
from ftlaunch_hooks.observe.unsaved.value_looks import is_library
from ftlaunch_hooks.process.say import say

_KNOWN = "Accelerate 1.15"
_OF_ACCELERATOR = (
    "_models _optimizers _schedulers _dataloaders _custom_objects scaler step gradient_state distributed_type"
)
_OF_LOADER = "begin end _update_state_dict iteration skip_batches end_of_dataloader base_dataloader"
_BLIND = (
    "the script's loop over epochs asks neither for the loader's `iteration` nor for job.step: after a resume it begins"
    " at its first epoch, and makes more epochs than an undisturbed run; begin it at `loader.iteration`"
)
_LATER = (
    "accelerator.prepare() was given more after ft.accelerate.attach(): that is not saved, and the run is not exact"
    " where training uses it; attach when all is prepared"
)
_KINDS = ("NO", "MULTI_CPU", "MULTI_GPU")


def attach(accelerator: Any, **more: Any) -> ft.Job:
    """Attach models, optimizers, schedulers, loaders' positions and registered objects. Call it after prepare().

    more: further objects, as ft.attach() takes them. Raises AttachError for what cannot be kept safe, and what
    ft.attach() raises.
    """
    _check(accelerator)
    position = _Position(accelerator)
    position.job = ft.attach(**_objects(accelerator), **more, accelerate=position)
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


def _objects(accelerator: Any) -> dict[str, Any]:
    named = {
        "model": accelerator._models,
        "optimizer": [one.optimizer for one in accelerator._optimizers],
        "scheduler": [one.scheduler for one in accelerator._schedulers],
        "scaler": [accelerator.scaler] if accelerator.scaler is not None else [],
        "registered": accelerator._custom_objects,
    }
    return {
        f"{name}_{number}" if number else name: target
        for name, targets in named.items()
        for number, target in enumerate(targets)
    }


def _frames() -> Iterator[FrameType]:
    """Of the script's functions that run now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _asks(frame: FrameType) -> bool:
    """Whether a function can go on where the job is."""
    return not {"iteration", "steps"}.isdisjoint(frame.f_code.co_names) or asks_for_step(frame)


class _Position:
    """Where an accelerator is: in its loaders, and in gathering gradients."""

    job: ft.Job

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._loaders = [_Loader(loader, self._begins, self._arrived) for loader in accelerator._dataloaders]
        self._prepared = _prepared(accelerator)
        self._told: set[str] = set()
        self.keeps_position_of = [loader.base_dataloader for loader in accelerator._dataloaders]

    def state_dict(self) -> dict[str, Any]:
        """At a boundary."""
        if _prepared(self._accelerator) != self._prepared:
            self._say_once(_LATER)
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

    def _begins(self, iteration: int) -> None:
        """Say it once where a later pass begins in a loop that would begin at its first one after a resume."""
        if iteration > 0 and _BLIND not in self._told and not any(_asks(frame) for frame in _frames()):
            self._say_once(_BLIND)

    def _say_once(self, sentence: str) -> None:
        if self._accelerator.is_main_process and sentence not in self._told:
            say(sentence)
        self._told.add(sentence)

    def _arrived(self) -> None:
        self.job.restore_rng()


class _Loader:
    """Follows a DataLoaderShard, and brings it back to a batch.

    The shard calls begin() as a pass over its data begins, end() as it ends, and _update_state_dict() before each fetch
    of the batch that follows the one to be handed out; at the end of the data once more.
    """

    def __init__(self, loader: Any, begins: Callable[[int], None], arrived: Callable[[], None]) -> None:
        """begins: called with the number of the pass. arrived: called before the fetch that follows the boundary."""
        self._loader, self._told_of, self._arrived = loader, begins, arrived
        self._begin, self._end, self._update = loader.begin, loader.end, loader._update_state_dict
        self._fetches = 0  # of this pass, without the first
        self._passes = False  # a pass is under way
        self._began_at: random_numbers.State | None = None
        self._ahead_at: random_numbers.Raw | None = None
        self._saved: dict[str, Any] | None = None
        loader.begin, loader.end, loader._update_state_dict = self._begins, self._ends, self._fetches_next

    def state(self) -> dict[str, Any]:
        """At a boundary."""
        had = self._fetches - 1 if self._loader.end_of_dataloader else self._fetches
        ahead = random_numbers.cooked(self._ahead_at) if self._ahead_at is not None else None
        within = {"had": had, "began_at": self._began_at, "ahead_at": ahead} if self._passes else None
        own = [generator.get_state() for generator in self._generators()]
        seeds = [one.initial_seed for one in self._samplers() if hasattr(one, "initial_seed")]
        return {"iteration": self._loader.iteration, "within": within, "own": own, "seeds": seeds}

    def go_on_from(self, saved: dict[str, Any]) -> None:
        """The next pass begins at the batch that the boundary was before."""
        self._saved = saved if saved["within"] is not None else None
        self._loader.iteration = saved["iteration"]
        seeded = [one for one in self._samplers() if hasattr(one, "initial_seed")]
        for sampler, seed in zip(seeded, saved["seeds"], strict=False):
            sampler.initial_seed = seed
        self._put_back_own(saved)

    def _put_back_own(self, saved: dict[str, Any]) -> None:
        for generator, state in zip(self._generators(), saved["own"], strict=False):
            generator.set_state(state)

    def _begins(self) -> None:
        self._begin()
        self._told_of(self._loader.iteration)
        self._fetches, self._passes = 0, True
        if self._saved is None:
            self._began_at = random_numbers.read(self._generators())
            self._loader.skip_batches = 0
        else:
            self._began_at = self._saved["within"]["began_at"]
            self._loader.skip_batches = self._saved["within"]["had"]
            random_numbers.put_back(self._began_at, self._generators())

    def _fetches_next(self) -> None:
        self._update()
        if self._saved is not None:
            self._go_back(self._saved)
        if self._saved is None:
            self._ahead_at = random_numbers.read_raw()
        self._fetches += 1

    def _go_back(self, saved: dict[str, Any]) -> None:
        """The batch of the boundary was read one batch ahead of it, and the one that follows behind it."""
        left = saved["within"]["had"] - self._fetches
        if left == 1:
            random_numbers.put_back(saved["within"]["ahead_at"])
        elif left == 0:
            self._saved = None
            self._put_back_own(saved)
            self._arrived()

    def _ends(self) -> None:
        self._passes = False
        self._loader.skip_batches = 0
        self._end()

    def _samplers(self) -> list[Any]:
        """The samplers within each other, as Accelerate wraps them."""
        found, holder = [], self._loader
        for name in ("batch_sampler", "batch_sampler", "sampler"):
            holder = getattr(holder, name, holder)
            found.append(holder)
        return found

    def _generators(self) -> list[torch.Generator]:
        holders = [self._loader, *self._samplers()]
        held = [getattr(one, name, None) for one in holders for name in ("generator", "synchronized_generator")]
        return list({id(one): one for one in held if isinstance(one, torch.Generator)}.values())
