"""Tells the user once that nobody saves the position of a DataLoader, as its first iterator for training is made.

`__iter__` of the classes of loaders is replaced. The replacement runs in the thread that makes the iterator.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Phase
from ftlaunch_hooks.data.held_samplers import samplers_saved_by
from ftlaunch_hooks.passes.kept_loader import is_kept
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.adapter import positions_kept_by
from ftlaunch_hooks.state.random_numbers.walk import nested

_MAX_DEPTH = 4
"""levels of samplers and data sets within each other, as libraries wrap them"""
_INSIDE = ("batch_sampler", "sampler", "dataset")


class DataOrder:
    """Checks every DataLoader of which an iterator is made, until the user was told of one."""

    def __init__(self, objects: Mapping[str, Any], page: Page) -> None:
        """Replace `__iter__` of the classes of loaders.

        An attached object that brings other objects back to their position (loaders, samplers, data sets) names these
        in `keeps_position_of`. A sampler of ftlaunch's that an attached object saves with its own state is found
        without that.

        Args:
            objects: attached objects by name, including the frozen ones.
            page: the page of this rank.
        """
        self._objects = objects
        self._page = page
        self._saved_by_others = samplers_saved_by(objects.values())
        self._pid = os.getpid()
        self._is_reported = False
        self.is_repeated: Callable[[], bool] = bool
        """tells whether an iterator that is made now would be made again after a resume, and read from its beginning"""
        self._replaced: dict[Any, tuple[Any, Any]] = {}
        """`__iter__` before and ours, by class"""
        for kind in _kinds_of_loaders():
            self._replaced[kind] = kind.__iter__, self._checked(kind.__iter__)
            kind.__iter__ = self._replaced[kind][1]

    def _checked(self, make_iterator: Any) -> Any:
        """Return an `__iter__` that checks the loader before the original is called."""

        @functools.wraps(make_iterator)
        def check_and_make(loader: Any) -> Any:
            if (
                not self._is_reported
                and not is_kept(loader)
                and not self.is_repeated()
                and self._is_training()
                and self._is_lost(loader)
            ):
                self._is_reported = True
                self._say(loader)
            return make_iterator(loader)

        return check_and_make

    def close(self) -> None:
        """Stop checking, and restore `__iter__` where nobody else has replaced ours."""
        self._is_reported = True
        for kind, (before, ours) in self._replaced.items():
            if kind.__iter__ is ours:
                kind.__iter__ = before

    def _is_training(self) -> bool:
        """Return False in a worker of a DataLoader, and while the script evaluates, as far as the script says so."""
        is_in_training_phase = self._page.phase in (Phase.STARTUP, Phase.TRAIN)
        return is_in_training_phase and torch.is_grad_enabled() and os.getpid() == self._pid

    def _is_lost(self, loader: Any) -> bool:
        """Return whether a new iterator of the loader begins anew after a resume, other than before.

        A list of batches is not lost: the script has made the list itself for its present step.
        """
        if self._moves_in_workers(loader):
            return True
        known = self._known_ids()
        order = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        is_made_by_script = not isinstance(order, Sampler) and not isinstance(loader.dataset, IterableDataset)
        parts = nested("loader", loader, attributes=_INSIDE, depth=_MAX_DEPTH)
        return not is_made_by_script and not any(id(part) in known for _, part in parts)

    def _known_ids(self) -> set[int]:
        """Return the ids of attached objects, and of objects that these bring back to their position."""
        objects = self._objects.values()
        return {id(known) for known in (*objects, *positions_kept_by(objects), *self._saved_by_others)}

    def _moves_in_workers(self, loader: Any) -> bool:
        """Return whether the position of an attached data set is only in the workers' copies, which nobody reads."""
        data = loader.dataset
        if not loader.num_workers or not isinstance(data, IterableDataset) or hasattr(loader, "state_dict"):
            return False
        brought_back = {id(target) for target in positions_kept_by(self._objects.values())}
        return any(target is data for target in self._objects.values()) and id(loader) not in brought_back

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
    """Return torch's class of loaders; also torchdata's with its own `__iter__` where the script has imported it."""
    stateful = sys.modules.get("torchdata.stateful_dataloader")
    return [DataLoader] if stateful is None else [DataLoader, stateful.StatefulDataLoader]
