"""The data positions among the attached objects: finds them, moves them on, checks them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from torch.utils.data import DataLoader

from ftlaunch_contract.checkpoint.skipped_samples import Spans
from ftlaunch_hooks.data.batch_sampler import PositionedSampler
from ftlaunch_hooks.data.held_samplers import samplers_saved_by
from ftlaunch_hooks.tensors.json_codec import StateError

_LOADERS_OWN = 2  # references to an iterator that only its loader holds: that one, and the one that counts them


class Position(Protocol):
    """A sampler of batch_sampler.py or mix_sampler.py, or anything like one."""

    @property
    def consumed(self) -> int:
        """Samples consumed, over all ranks."""

    def advance(self) -> None:
        """One global batch has been consumed."""


class Positions:
    """All data positions of a job."""

    def __init__(self, objects: Mapping[str, Any], frozen: Collection[str], *, counted_before: bool = False) -> None:
        """objects, frozen: as attach() takes them. Raises StateError for a loader whose position is another's.

        counted_before: an earlier training of the process has counted samples of its own: a count names none here.
        """
        self._counted_before = counted_before
        kept = {name: target for name, target in objects.items() if name not in frozen}
        self._moved: list[Position] = [target for target in kept.values() if _is_position(target)]
        others = [target for target in kept.values() if not _is_position(target)]
        self._moved_by_script = [one for one in samplers_saved_by(others) if not self.moves(one)]
        self.any = bool(self._moved or self._moved_by_script)
        self._skips_ahead = False  # samples that follow are passed over
        self._loaders = {name: target for name, target in kept.items() if isinstance(target, DataLoader)}
        for name, loader in self._loaders.items():
            if _is_position(loader.batch_sampler) or _is_position(loader.sampler):
                raise StateError(
                    f"cannot attach: `{name}` takes its batches from a sampler that keeps the position itself; "
                    "attach that sampler instead, and use a plain DataLoader"
                )

        self.read_early = [name for name, loader in self._loaders.items() if _is_being_read(loader)]
        """names of loaders of which the script holds an iterator, made before attach(): no other place reaches it"""

    def at_end(self) -> list[str]:
        """Return the names of loaders that were restored behind the last batch of a pass: the next one has none."""
        return [name for name, loader in self._loaders.items() if _is_at_end(loader)]

    def check_not_read(self) -> None:
        """Raises StateError where a position was restored that does not reach an iterator which the script holds."""
        for name in self.read_early:
            raise StateError(
                f"cannot resume: the script holds an iterator of `{name}` that was made before attach(), and which"
                " begins anew; make the iterator after attach()"
            )

    def advance(self) -> int:
        """Move every attached sampler on, as a step is complete. Return the samples consumed, of all samplers.

        A sampler that another attached object saves is moved on by the script.
        """
        for position in self._moved:
            position.advance()
        return sum(position.consumed for position in [*self._moved, *self._moved_by_script])

    def moves(self, sampler: object) -> bool:
        """Whether a sampler is attached, and moved on with each step."""
        return any(one is sampler for one in self._moved)

    @property
    def skippable(self) -> bool:
        """Whether a count of consumed samples names a sample: there is one sampler, and it is a PositionedSampler."""
        is_only_one = len(self._moved) == 1 and not self._moved_by_script
        return not self._counted_before and is_only_one and isinstance(self._moved[0], PositionedSampler)

    def ahead(self) -> int:
        """Samples consumed once the step being made is complete, where they are skippable."""
        sampler = copy.copy(self._moved[0])  # only its position is replaced
        sampler.advance()
        return sampler.consumed

    def skip(self, spans: Spans) -> None:
        """Pass over samples that no run is to use again, where the sampler can do it.

        Raises PositionError where an iterator has read ahead already.
        """
        if not spans or not self.skippable:
            return
        self._skips_ahead = spans[-1][1] > self._moved[0].consumed
        sampler = self._moved[0]
        assert isinstance(sampler, PositionedSampler)
        sampler.skip(spans)

    def are_moved_on_otherwise(self) -> bool:
        """Whether batches are to be other ones than they were before the resume: samples are left out, or batches
        are larger or smaller.
        """
        return self._skips_ahead or any(getattr(one, "batches_differ", False) for one in self._moved)

    def with_workers(self) -> list[str]:
        """Names of the loaders that fetch in workers."""
        return [name for name, loader in self._loaders.items() if loader.num_workers]

    def check_ranks(self, saved: int, now: int) -> None:
        """Raises StateError when a loader was saved by `saved` ranks and there are `now`.

        torchdata's StatefulDataLoader knows what its own rank has yielded; of another number of ranks none
        would know what is left.
        """
        if self._loaders and saved != now:
            name = next(iter(self._loaders))
            raise StateError(
                f"cannot restore `{name}`: it was saved by {saved} ranks, now there are {now}, and the "
                "position of a StatefulDataLoader is one rank's; use ResumableBatchSampler where the number of ranks "
                f"may change, or start with {saved}"
            )


def _is_being_read(loader: DataLoader[Any]) -> bool:
    """Whether somebody else than a StatefulDataLoader itself holds the iterator that it made last."""
    held = vars(loader)
    if held.get("_iterator") is None or held.get("_initial_iter_for_state_dict"):
        return False
    return sys.getrefcount(held["_iterator"]) > _LOADERS_OWN


def _is_at_end(loader: DataLoader[Any]) -> bool:
    """Whether the place that a StatefulDataLoader was given is behind the last batch, and before the pass's end."""
    state = vars(loader).get("next_iter_state")
    if not isinstance(state, Mapping) or state.get("_iterator_finished"):
        return False
    snapshot = state.get("_snapshot", {})
    had = state.get("_num_yielded", snapshot.get("_snapshot_step", 0) + state.get("_steps_since_snapshot", 0))
    try:
        return bool(had == len(loader))
    except TypeError:  # an IterableDataset of unknown length
        return False


def _is_position(target: object) -> bool:
    return hasattr(target, "advance") and hasattr(target, "consumed")
