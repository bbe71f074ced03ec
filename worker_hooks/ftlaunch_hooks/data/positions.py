"""The data positions among the attached objects: finds them, moves them on with each step, and checks them.

A Job has one `Positions` for its whole life and calls it in the training thread.
"""

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

# References to an iterator that only its loader holds: the loader's, and the argument of sys.getrefcount.
_UNSHARED_REFERENCES = 2


class Position(Protocol):
    """A sampler of batch_sampler.py or mix_sampler.py, or any object with these two members."""

    @property
    def consumed(self) -> int:
        """Samples consumed, over all ranks."""

    def advance(self) -> None:
        """Move the position past one global batch, which has been consumed."""


class Positions:
    """All data positions of a job."""

    def __init__(self, objects: Mapping[str, Any], frozen: Collection[str], *, counted_before: bool = False) -> None:
        """Find the positions among the attached objects.

        Args:
            objects: name -> attached object.
            frozen: names of objects that are not saved.
            counted_before: whether an earlier training of the process has counted samples of its own, so that a count
                of samples names no sample here.

        Raises:
            StateError: an attached loader takes its batches from a sampler that keeps the position itself.
        """
        self._counted_before = counted_before
        kept = {name: target for name, target in objects.items() if name not in frozen}
        self._moved: list[Position] = [target for target in kept.values() if _is_position(target)]
        others = [target for target in kept.values() if not _is_position(target)]
        self._moved_by_script = [sampler for sampler in samplers_saved_by(others) if not self.moves(sampler)]
        self.any = bool(self._moved or self._moved_by_script)
        self._skips_ahead = False  # whether samples that are still to come are skipped
        self._loaders = {name: target for name, target in kept.items() if isinstance(target, DataLoader)}
        for name, loader in self._loaders.items():
            if _is_position(loader.batch_sampler) or _is_position(loader.sampler):
                raise StateError(
                    f"cannot attach: `{name}` takes its batches from a sampler that keeps the position itself; "
                    "attach that sampler instead, and use a plain DataLoader"
                )

        self.read_early = [name for name, loader in self._loaders.items() if _is_being_read(loader)]
        """names of loaders of which the script holds an iterator made before attach(), which no restore reaches"""

    def at_end(self) -> list[str]:
        """Return the names of loaders that were restored at the end of a pass, so that the next pass has no batch."""
        return [name for name, loader in self._loaders.items() if _is_at_end(loader)]

    def check_not_read(self) -> None:
        """Raise StateError if a position was restored that does not reach an iterator which the script holds."""
        for name in self.read_early:
            raise StateError(
                f"cannot resume: the script holds an iterator of `{name}` that was made before attach(), and which"
                " begins anew; make the iterator after attach()"
            )

    def advance(self) -> int:
        """Move every attached sampler on after a step; return the samples consumed, summed over all samplers.

        A sampler that another attached object saves is moved on by the script.
        """
        for position in self._moved:
            position.advance()
        return sum(position.consumed for position in [*self._moved, *self._moved_by_script])

    def moves(self, sampler: object) -> bool:
        """Whether a sampler is attached, and so moved on with each step."""
        return any(position is sampler for position in self._moved)

    @property
    def skippable(self) -> bool:
        """Whether a count of consumed samples names a sample: there is one sampler, and it is a PositionedSampler."""
        is_only_one = len(self._moved) == 1 and not self._moved_by_script
        return not self._counted_before and is_only_one and isinstance(self._moved[0], PositionedSampler)

    def ahead(self) -> int:
        """Return the samples consumed once the step that is being made is complete. Only where they are `skippable`."""
        sampler = copy.copy(self._moved[0])  # only its position is replaced
        sampler.advance()
        return sampler.consumed

    def skip(self, spans: Spans) -> None:
        """Skip samples that no run is to use again, if the sampler can do so.

        Raises:
            PositionError: an iterator has read ahead already.
        """
        if not spans or not self.skippable:
            return
        self._skips_ahead = spans[-1][1] > self._moved[0].consumed
        sampler = self._moved[0]
        assert isinstance(sampler, PositionedSampler)
        sampler.skip(spans)

    def are_moved_on_otherwise(self) -> bool:
        """Whether batches will differ from those before the resume, as samples are skipped or batches are resized."""
        return self._skips_ahead or any(getattr(position, "batches_differ", False) for position in self._moved)

    def with_workers(self) -> list[str]:
        """Return the names of the loaders that fetch batches in workers."""
        return [name for name, loader in self._loaders.items() if loader.num_workers]

    def check_ranks(self, saved: int, now: int) -> None:
        """Raise StateError if a loader was saved by `saved` ranks and there are `now`.

        torchdata's StatefulDataLoader knows what its own rank has yielded. With another number of ranks, none would
        know what is left.
        """
        if self._loaders and saved != now:
            name = next(iter(self._loaders))
            raise StateError(
                f"cannot restore `{name}`: it was saved by {saved} ranks, now there are {now}, and the "
                "position of a StatefulDataLoader is one rank's; use ResumableBatchSampler where the number of ranks "
                f"may change, or start with {saved}"
            )


def _is_being_read(loader: DataLoader[Any]) -> bool:
    """Whether anybody but a StatefulDataLoader itself holds the iterator that the loader made last."""
    held = vars(loader)
    if held.get("_iterator") is None or held.get("_initial_iter_for_state_dict"):
        return False
    return sys.getrefcount(held["_iterator"]) > _UNSHARED_REFERENCES


def _is_at_end(loader: DataLoader[Any]) -> bool:
    """Whether the place that a StatefulDataLoader was given is behind the last batch but before the pass's end."""
    state = vars(loader).get("next_iter_state")
    if not isinstance(state, Mapping) or state.get("_iterator_finished"):
        return False
    snapshot = state.get("_snapshot", {})
    yielded = state.get("_num_yielded", snapshot.get("_snapshot_step", 0) + state.get("_steps_since_snapshot", 0))
    try:
        return bool(yielded == len(loader))
    except TypeError:  # an IterableDataset of unknown length
        return False


def _is_position(target: object) -> bool:
    return hasattr(target, "advance") and hasattr(target, "consumed")
