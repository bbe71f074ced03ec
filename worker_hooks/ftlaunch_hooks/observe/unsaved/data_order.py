"""Says once that nobody saves where a DataLoader is: the first iterator of such a one, made for training."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Phase
from ftlaunch_hooks.data.held_samplers import samplers_saved_by
from ftlaunch_hooks.passes.kept_loader import is_kept
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.adapter import positions_kept_by

_DEEP = 4  # samplers and data sets within each other, as libraries wrap them
_INSIDE = ("batch_sampler", "sampler", "dataset")


class DataOrder:
    """Looks at each DataLoader of which an iterator is made."""

    def __init__(self, objects: Mapping[str, Any], page: Page) -> None:
        """objects: as attach() takes them, the frozen ones included. page: of this rank.

        An attached object that brings others back to their position (loaders, samplers, data sets) names them in
        `keeps_position_of`; a sampler of ftlaunch's that it saves with its own state is found without that.
        """
        self._objects, self._page = objects, page
        self._saved_by_others = samplers_saved_by(objects.values())
        self._pid, self._told = os.getpid(), False
        self.is_made_again: Callable[[], bool] = bool
        """whether an iterator that is made now is made again, and gone through from its beginning, after a resume"""
        self._kinds: dict[Any, tuple[Any, Any]] = {}
        for kind in _kinds_of_loaders():
            self._kinds[kind] = kind.__iter__, self._looking(kind.__iter__)
            kind.__iter__ = self._kinds[kind][1]

    def _looking(self, make: Any) -> Any:
        """`make`, an `__iter__`, with a look before it."""

        @functools.wraps(make)
        def make_and_look(loader: Any) -> Any:
            if (
                not self._told
                and not is_kept(loader)
                and not self.is_made_again()
                and self._trains()
                and self._is_lost(loader)
            ):
                self._told = True
                self._say(loader)
            return make(loader)

        return make_and_look

    def close(self) -> None:
        """Look no longer."""
        self._told = True
        for kind, (before, ours) in self._kinds.items():
            if kind.__iter__ is ours:
                kind.__iter__ = before

    def _trains(self) -> bool:
        """Not where the script evaluates, as far as it says so, and not in a worker of a DataLoader."""
        training = self._page.phase in (Phase.STARTUP, Phase.TRAIN)
        return training and torch.is_grad_enabled() and os.getpid() == self._pid

    def _is_lost(self, loader: Any) -> bool:
        """A list of batches the script has made itself, for the step at which it is; everything else begins anew."""
        if self._moves_in_workers(loader):
            return True
        known = self._known()
        order = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        made = not isinstance(order, Sampler) and not isinstance(loader.dataset, IterableDataset)
        return not made and not any(id(one) in known for one in _within(loader, _DEEP))

    def _known(self) -> set[int]:
        """Ids of what is attached, and of what attached objects bring back to its position."""
        objects = self._objects.values()
        return {id(one) for one in (*objects, *positions_kept_by(objects), *self._saved_by_others)}

    def _moves_in_workers(self, loader: Any) -> bool:
        """Whether an attached data set has its position in copies, those of workers, which nobody asks for it."""
        data = loader.dataset
        if not loader.num_workers or not isinstance(data, IterableDataset) or hasattr(loader, "state_dict"):
            return False
        brought_back = {id(one) for one in positions_kept_by(self._objects.values())}
        return any(one is data for one in self._objects.values()) and id(loader) not in brought_back

    def _say(self, loader: Any) -> None:
        if self._moves_in_workers(loader):
            say(
                f"the position of an attached data set ({type(loader.dataset).__name__}) moves in the workers of its"
                " DataLoader, and the one that is saved does not: after a resume the data begins anew, and the run is"
                " not exact; take the batches from job.batches(loader), or leave num_workers out"
            )
            return
        data = loader.dataset if isinstance(loader.dataset, IterableDataset) else loader.sampler
        say(
            f"the order of the data of a DataLoader ({type(data).__name__}) is not saved: after a resume its iterator"
            " begins anew, and samples come twice or not at all, unless the script skips those it has had; write"
            " `for epoch in job.epochs(number):` and in it `for batch in job.batches(loader):` (a loader for"
            " evaluation: make its iterator under torch.no_grad(), or in job.phase('eval'))"
        )


def _kinds_of_loaders() -> list[Any]:
    """torch's, and torchdata's, which has an `__iter__` of its own, where the script has imported it."""
    stateful = sys.modules.get("torchdata.stateful_dataloader")
    return [DataLoader] if stateful is None else [DataLoader, stateful.StatefulDataLoader]


def _within(target: Any, depth: int) -> Iterator[Any]:
    """A loader, and the samplers and data sets in it."""
    yield target
    for name in _INSIDE if depth else ():
        if (held := getattr(target, name, None)) is not None:
            yield from _within(held, depth - 1)
