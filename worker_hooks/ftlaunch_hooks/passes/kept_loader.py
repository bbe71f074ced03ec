"""A DataLoader whose passes are saved at each batch, and can begin again at a batch.

Only this module touches private parts of torch's DataLoader and torchdata's StatefulDataLoader. It runs in the training
thread, for job.epochs() and job.batches().
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ftlaunch_hooks.data.batch_sampler import PositionedSampler
from ftlaunch_hooks.data.sample_seeds import mixed
from ftlaunch_hooks.passes.batch_sample import same, sample_of
from ftlaunch_hooks.passes.draws import Draws
from ftlaunch_hooks.passes.index_order import IndexOrder, Indices, draws_between_batches
from ftlaunch_hooks.passes.newest_batch import OTHER_BATCHES
from ftlaunch_hooks.passes.own_numbers import OwnNumbers
from ftlaunch_hooks.passes.sampler_state import (
    Attributes,
    changed_attributes,
    copied,
    plain_attributes,
    put_back_attributes,
)
from ftlaunch_hooks.passes.worker_seeds import WorkerStart
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.random_numbers.shared import State
from ftlaunch_hooks.tensors.json_codec import StateError

NO_BATCH = object()
_making: set[int] = set()  # ids of loaders whose iterator is being made here
_tried: WeakSet[Any] = WeakSet()  # loaders whose sampler was asked a second time, to compare its orders
_warned: WeakSet[Any] = WeakSet()  # loaders of whose workers the user was warned

# Seeds of samplers are mixed from this number, seeds of workers from the numbers of ranks: so the two never meet.
_SAMPLER_STREAM = 1 << 62
_OTHER_ORDER = (
    "a sampler ({sampler}) gives another order when it is asked again with the random numbers with which it was asked:"
    " a job that resumes goes on with other batches, and is not exact; have it draw from the process's generators, or"
    " from one that it seeds for each epoch, and shuffle a copy of what it holds"
)
_PERSISTENT = (
    "workers of a DataLoader with persistent_workers=True keep their copies of an IterableDataset from pass to pass,"
    " and nobody saves them: after a resume in a later pass they begin anew, and the run is not exact where the data"
    " set keeps its place in them; leave persistent_workers out"
)


def is_kept(loader: object) -> bool:
    """Whether an iterator of the loader is being made by a KeptLoader, so that its place is saved."""
    return id(loader) in _making


class KeptLoader:
    """A loader whose passes are saved."""

    def __init__(self, loader: DataLoader[Any], rank: int) -> None:
        """Take a loader of a rank; the rank's number goes into the seeds of its workers.

        Raises:
            StateError: passes over the loader cannot be brought back.
        """
        self.loader = loader
        self._rank = rank
        self.draws = Draws(loader)
        self.is_stream = isinstance(loader.dataset, IterableDataset)
        if loader.num_workers > 1 and not getattr(loader, "in_order", True):
            raise StateError(
                "cannot take batches from a DataLoader with in_order=False: they come in the order in which its workers"
                " are done, which no other run has; leave in_order out"
            )
        self._order = IndexOrder(loader._index_sampler)
        self._attributes: Attributes = {}  # the sampler's attributes when the newest pass began

    def begin(self, seed: int, saved: dict[str, Any] | None) -> LoaderPass:
        """Begin a pass, or go to a saved batch of one.

        In the latter case the process's generators are left anywhere in the pass.

        Args:
            seed: seed of this pass, the same on all ranks. The one in `saved` takes precedence.
            saved: a result of LoaderPass.state(); None: begin at the first batch.

        Raises:
            StateError: the loader does not have the batches that were read before.
        """
        if saved is not None:
            seed = saved["seed"]
        if self.is_stream:
            return _StreamPass(self, seed, saved)
        return _OrderedPass(self, seed, saved)

    @property
    def has_workers(self) -> bool:
        """Whether the loader has persistent workers that are running already."""
        return self.loader.num_workers > 0 and self.loader.persistent_workers and self.loader._iterator is not None

    def make(self, indices: Indices, *, from_place: bool = False) -> Iterator[Any]:
        """Ask the loader for the iterator of a pass, which takes its indices from `indices`.

        from_place: whether `go_in_data_to` was called for this pass.
        """
        if _is_stateful(self.loader) and not from_place:
            self._forget_state()
        loader = self.loader
        order = self._order
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        living = loader._iterator if self.has_workers else None
        if living is not None:
            living._index_sampler = order
        order.indices = indices
        with self._set(name, order), self._set("worker_init_fn", self._worker_start()), _marked_as_kept(loader):
            try:
                return iter(loader)
            finally:
                order.indices = None

    def _forget_state(self) -> None:
        """Make a StatefulDataLoader forget its place.

        If it is attached, it was asked for its state, and then makes an iterator and keeps that.
        """
        held = vars(self.loader)
        if held.get("_initial_iter_for_state_dict"):
            held.update(_iterator=None, _initial_iter_for_state_dict=False)
        held["next_iter_state"] = None

    def _worker_start(self) -> Any:
        return WorkerStart(self.loader.worker_init_fn, self.loader.collate_fn) if self.loader.num_workers else None

    @contextmanager
    def _set(self, name: str, value: Any) -> Iterator[None]:
        """Give an attribute of the loader another value for a while, past DataLoader's own check."""
        held = vars(self.loader)
        before = held[name]
        held[name] = value
        try:
            yield
        finally:
            held[name] = before

    def indices(self, seed: int, began_at: State, *, skipped: int) -> Indices:
        """Return the indices for a pass.

        Args:
            seed: the pass's seed.
            began_at: the random numbers with which the pass began.
            skipped: the number of batches that were read before.
        """
        # Starting workers draws a number. Persistent workers are started in a first pass, and in a pass that is begun
        # again after a resume, but not in the others. So that the sampler draws the same in all of them, the generators
        # are put back before the sampler is asked.
        has_persistent_workers = self.loader.num_workers > 0 and self.loader.persistent_workers
        sampler = self._order.sampler_of_loader
        positioned = self.is_positioned  # such a sampler skips and seeds by itself
        needs_own_numbers = not self.is_stream and not positioned and draws_between_batches(sampler)
        return Indices(
            sampler,
            skipped=0 if positioned else skipped,
            seed_of_batches=mixed(seed, self._rank) if self.loader.num_workers and not positioned else None,
            numbers=OwnNumbers(mixed(seed, _SAMPLER_STREAM)) if needs_own_numbers else None,
            before_first=(lambda: self.draws.put_back(began_at)) if has_persistent_workers else None,
            is_stream=self.is_stream,
        )

    @property
    def is_positioned(self) -> bool:
        """Whether the sampler keeps its position itself."""
        return isinstance(self._order.sampler_of_loader, PositionedSampler)

    @property
    def sampler(self) -> Any:
        """Return the loader's own sampler: of batches, or of samples if the loader makes no batches."""
        return self._order.sampler_of_loader

    @property
    def has_place(self) -> bool:
        """Whether the data set is a stream that can save where it is."""
        return self.is_stream and _has_place(self.loader.dataset)

    def place_in_data(self) -> Any:
        """Return where a stream's data set is between two passes, in a form that can be saved; None if unknown."""
        data: Any = self.loader.dataset
        return copy.deepcopy(data.state_dict()) if self.has_place else None

    def attributes(self) -> Attributes:
        """Return what the sampler keeps in plain attributes, as a pass begins."""
        self._attributes = attributes_of(self.loader)
        return self._attributes

    def put_back_attributes(self, saved: Attributes) -> None:
        """Give the sampler the attributes with which a saved pass had begun."""
        if not self.is_positioned:
            put_back_attributes(self.sampler, saved)
            self._attributes = saved

    def between_passes(self) -> dict[str, Any]:
        """Return what the loader's next pass begins with, besides the process's generators."""
        moved = changed_attributes(self._attributes, attributes_of(self.loader))
        return {"draws": self.draws.own(), "data": self.place_in_data(), "attributes": moved}

    def begin_from(self, saved: dict[str, Any], first: Attributes) -> None:
        """Let the next pass begin with what `between_passes` has returned.

        Args:
            saved: the result of `between_passes`.
            first: the sampler's attributes before the script's loops began. If the script has changed an attribute
                since, as set_epoch() does, it did so for this pass, and the change stays.
        """
        given = changed_attributes(first, attributes_of(self.loader))
        moved = {
            path: {name: value for name, value in held.items() if name not in given.get(path, {})}
            for path, held in saved["attributes"].items()
        }
        put_back_attributes(self.sampler, moved)
        self.draws.put_back_own(saved["draws"])
        if saved["data"] is not None and self.has_place:
            data: Any = self.loader.dataset
            data.load_state_dict(saved["data"])

    def place_of_stream(self) -> Any:
        """Return where the stream is in the middle of a pass, in a form that can be saved; None where nobody can say.

        If workers read a data set, its copy in the training process does not move. A StatefulDataLoader asks its
        workers.
        """
        if _is_stateful(self.loader):
            return copy.deepcopy(self.loader.state_dict())  # type: ignore[attr-defined]
        return None if self.loader.num_workers else self.place_in_data()

    def go_in_data_to(self, place: Any) -> None:
        """Let the next pass begin at a result of `place_in_data` or `place_of_stream`."""
        target: Any = self.loader if _is_stateful(self.loader) else self.loader.dataset
        if place is not None:
            target.load_state_dict(place)

    def try_sampler(self, indices: Indices, seed: int, began_at: State, attributes: Attributes) -> None:
        """Ask a copy of the sampler again as a first pass begins, and warn once if it gives another order.

        Args:
            indices: the indices of the pass.
            seed: the pass's seed.
            began_at: the random numbers with which the pass began.
            attributes: the sampler's attributes at that time.
        """
        if self.loader in _tried or self.is_positioned or not draws_between_batches(self.sampler):
            return
        _tried.add(self.loader)
        now = self.draws.own()
        twin = copied(self.sampler)
        put_back_attributes(twin, attributes)
        self.draws.put_back_own({**now, **began_at})
        try:
            is_same = indices.begins_as(twin, OwnNumbers(mixed(seed, _SAMPLER_STREAM)))
        finally:
            self.draws.put_back_own(now)
        if not is_same:
            inner = self.sampler.sampler if type(self.sampler) is BatchSampler else self.sampler
            say(_OTHER_ORDER.format(sampler=type(inner).__name__))

    def say_if_persistent(self) -> None:
        """Warn once if persistent workers keep a place in the data that nobody saves."""
        if self.has_place and self.loader not in _warned:
            _warned.add(self.loader)
            say(_PERSISTENT)


def attributes_of(loader: DataLoader[Any]) -> Attributes:
    """Return what the sampler of a loader keeps in plain attributes; nothing for one with a position of its own."""
    sampler = loader._index_sampler
    return {} if isinstance(sampler, PositionedSampler) else plain_attributes(sampler)


def _has_place(data: Any) -> bool:
    return callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None))


def _is_stateful(loader: object) -> bool:
    """Whether this is torchdata's StatefulDataLoader."""
    return any(kind.__name__ == "StatefulDataLoader" for kind in type(loader).__mro__)


@contextmanager
def _marked_as_kept(loader: object) -> Iterator[None]:
    """Let `is_kept` return True for the loader meanwhile."""
    _making.add(id(loader))
    try:
        yield
    finally:
        _making.discard(id(loader))


class LoaderPass:
    """A pass over a loader."""

    def __init__(self, kept: KeptLoader, seed: int) -> None:
        self.kept = kept
        self._seed = seed
        self.had = 0
        """number of batches handed out in this pass, including earlier attempts of the job"""

    def fetch(self) -> Any:
        """Return the next batch, or NO_BATCH at the end of the pass."""
        raise NotImplementedError

    def has_more(self) -> bool:
        """Whether the pass has another batch. The batch may be loaded to find out, but training is not affected."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return where the pass is, between two batches, in a form that can be saved."""
        raise NotImplementedError


class _OrderedPass(LoaderPass):
    """A pass over samples that indices name: the sampler skips what was read before, and none of that is loaded."""

    def __init__(self, kept: KeptLoader, seed: int, saved: dict[str, Any] | None) -> None:
        """Begin the pass, or go to a saved batch; the arguments are those of KeptLoader.begin()."""
        super().__init__(kept, seed)
        self._attributes = saved["attributes"] if saved is not None else kept.attributes()
        self._before = 0  # number of batches that `_indices` does not count, as an attached sampler begins behind them
        if saved is None:
            self._began_at = kept.draws.read()
            self._indices = kept.indices(seed, self._began_at, skipped=0)
            self._iterator = kept.make(self._indices)
            self.has_more()  # makes the sampler draw its first numbers now, as when the pass is begun again
            kept.try_sampler(self._indices, seed, began_at=self._began_at, attributes=self._attributes)
            return
        self.had = saved["had"]
        self._began_at = saved["began_at"]
        self._before = self.had if kept.is_positioned else 0
        kept.draws.put_back(self._began_at)
        kept.put_back_attributes(self._attributes)
        self._indices = kept.indices(seed, self._began_at, skipped=self.had - self._before)
        self._iterator = kept.make(self._indices)
        self._check_skipped(saved)
        self.has_more()  # when the place was saved, the sampler had been asked for one index more
        kept.draws.put_back_own(saved)

    def _check_skipped(self, saved: dict[str, Any]) -> None:
        """Check that the samples that were skipped are those that were read before.

        Raises StateError if some are missing.
        """
        found = self._indices.start()
        if found < self.had - self._before:
            raise StateError(
                f"cannot resume: {self.had} batches of a pass were had, and the DataLoader has {found} now; start it"
                " with the data that it had, or give --fresh to start over"
            )
        if not self._before and self._indices.checksum(self.had) != saved["checksum"]:
            say(OTHER_BATCHES)

    def fetch(self) -> Any:
        """Return the next batch, or NO_BATCH.

        Raises StateError if the loader does not ask its sampler for the order.
        """
        batch = next(self._iterator, NO_BATCH)
        if batch is not NO_BATCH and not self._indices.are_asked_for:
            raise StateError(
                f"cannot take batches from a {type(self.kept.loader).__name__}: it takes the order of its samples from"
                " elsewhere than its sampler, where nobody can bring it back; take them from a DataLoader of torch's"
            )
        self.had += batch is not NO_BATCH
        return batch

    def has_more(self) -> bool:
        """Whether the sampler has another index."""
        return self._indices.has_more(self.had - self._before)

    def state(self) -> dict[str, Any]:
        """Return where the pass is, between two batches, in a form that can be saved."""
        return {
            "had": self.had,
            "seed": self._seed,
            "began_at": self._began_at,
            "attributes": self._attributes,
            "checksum": self._indices.checksum(self.had - self._before),
            **self.kept.draws.own(),
        }


class _StreamPass(LoaderPass):
    """A pass over an IterableDataset.

    What was read is read again, unless the data set or the loader can save its place. Whether there is another batch is
    known only by loading it. So one batch is loaded ahead, and what is saved is where the stream was before that. In
    the training process a stream draws random numbers of its own.
    """

    def __init__(self, kept: KeptLoader, seed: int, saved: dict[str, Any] | None) -> None:
        """Begin the pass, or go to a saved batch; the arguments are those of KeptLoader.begin()."""
        super().__init__(kept, seed)
        if kept.has_workers:
            kept.say_if_persistent()
        self._numbers = None if kept.loader.num_workers else OwnNumbers(mixed(seed, _SAMPLER_STREAM))
        self._ahead: deque[Any] = deque()  # the batch that is loaded ahead, if there is one
        self._before_ahead: dict[str, Any] = {}  # where the stream was before that batch was loaded
        if saved is None:
            self._began_at = kept.draws.read()
            self._data_began_at = kept.place_in_data()
            self._iterator = kept.make(kept.indices(seed, self._began_at, skipped=0))
            return
        self._began_at = saved["began_at"]
        self._data_began_at = saved["data_began_at"]
        kept.draws.put_back(self._began_at)
        place = saved["ahead"]["place"]
        kept.go_in_data_to(self._data_began_at if place is None else place)
        indices = kept.indices(seed, self._began_at, skipped=0)
        self._iterator = kept.make(indices, from_place=place is not None)
        if place is None:
            self._reread(saved["had"])
        elif self._numbers is not None:
            self._numbers.go_to(saved["ahead"]["numbers"])
        self.had = saved["had"]
        kept.draws.put_back_own(saved["ahead"]["own"])
        if self.has_more() != saved["has_more"] or not same(saved["sample"], self._sample()):
            say(OTHER_BATCHES)
        kept.draws.put_back_own(saved)

    def _reread(self, count: int) -> None:
        """Read the first `count` batches of the pass once more. Raises StateError if there are fewer."""
        for number in range(count):
            if self._load() is NO_BATCH:
                raise StateError(
                    f"cannot resume: {count} batches of a pass were had, and the DataLoader has {number} now; start it"
                    " with the data that it had, or give --fresh to start over"
                )

    def _load(self) -> Any:
        return self._run(lambda: next(self._iterator, NO_BATCH))

    def _run(self, call: Callable[[], Any]) -> Any:
        return call() if self._numbers is None else self._numbers.run(call)

    def fetch(self) -> Any:
        """Return the next batch, or NO_BATCH at the end of the pass."""
        batch = self._ahead.popleft() if self._ahead else self._load()
        self.had += batch is not NO_BATCH
        return batch

    def has_more(self) -> bool:
        """Whether the pass has another batch, which is loaded ahead to find out."""
        if not self._ahead:
            self._before_ahead = self._here()
            self._ahead.append(self._load())
        return self._ahead[0] is not NO_BATCH

    def _here(self) -> dict[str, Any]:
        """Return where the stream is now, in a form that can be saved."""
        numbers = None if self._numbers is None else self._numbers.state()
        return {"place": self.kept.place_of_stream(), "numbers": numbers, "own": self.kept.draws.own()}

    def _sample(self) -> Tensor:
        return sample_of([batch for batch in self._ahead if batch is not NO_BATCH])

    def state(self) -> dict[str, Any]:
        """Return where the pass is, between two batches, in a form that can be saved."""
        has_more = self.has_more()  # first: loads the batch ahead of which the rest is saved
        return {
            "had": self.had,
            "seed": self._seed,
            "began_at": self._began_at,
            "data_began_at": self._data_began_at,
            "ahead": self._before_ahead,
            "has_more": has_more,
            "sample": self._sample().cpu(),
            **self.kept.draws.own(),
        }
