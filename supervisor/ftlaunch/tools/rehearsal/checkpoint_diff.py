"""Compares two checkpoints bit for bit, without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import layout, tensor_file, verify
from ftlaunch_contract.files import checksums

_RNG = "rng."  # keys of random number generators begin so
_VARIABLES = "loop_variables"  # as the hooks name them
_STATE = "state"  # of an object's tree: what its state_dict() said; it is not part of tensors' keys


@dataclass(frozen=True)
class Likeness:
    """What differs between two checkpoints; nothing where both are empty."""

    tensors: tuple[str, ...] = ()  # keys, with the rank's `@r` where every rank has one of its own
    others: tuple[str, ...] = ()  # names of attached objects, for what is not a tensor
    places: tuple[str, ...] = ()  # where in those
    generators: tuple[str, ...] = ()  # random number generators

    @property
    def equal(self) -> bool:
        """Whether all that is trained is the same."""
        return not self.tensors and not self.others

    def without(self, varying: Collection[str]) -> Likeness:
        """The same but for some places, and tensors that are named after these.

        At which places two undisturbed runs differ is what a run is called: a folder of its own, a time, a number.
        """
        places = [place for place in self.places if not _below(place, varying)]
        tensors = tuple(key for key in self.tensors if not _below(key, varying))
        return Likeness(tensors, _objects(places), tuple(places), self.generators)


def compare(one: Path, other: Path) -> Likeness:
    """What differs between the checkpoints in two directories. Raises layout.Damaged, OSError."""
    mine, theirs = dict(_tensors(one)), dict(_tensors(other))
    keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    places = _differences(one, other)
    return Likeness(
        tensors=tuple(key for key in keys if not key.startswith(_RNG)),
        others=_objects(places),
        places=places,
        generators=tuple(key for key in keys if key.startswith(_RNG)),
    )


def _objects(places: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({place.partition(".")[0] for place in places}))


def _differences(one: Path, other: Path) -> tuple[str, ...]:
    """The places, `object.key.key`, at which values that are no tensors differ between two checkpoints."""
    mine, theirs = _state(one), _state(other)
    found: set[str] = set()
    for name in mine.keys() | theirs.keys():
        if name.partition("@")[0] != "rng":
            found |= set(_different(mine.get(name), theirs.get(name), name.partition("@")[0]))
    return tuple(sorted(found))


def _different(mine: Any, theirs: Any, place: str) -> Iterator[str]:
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for key in mine:
            below = place if key == _STATE and "." not in place else f"{place}.{key}"
            yield from _different(mine[key], theirs[key], below)
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for index, (value, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from _different(value, other, f"{place}.{index}")
    elif mine != theirs:
        yield place


def _below(place: str, varying: Collection[str]) -> bool:
    return any(place == one or place.startswith(f"{one}.") for one in varying)


def _tensors(directory: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(key and place of a part, what it is and the digest of its bytes)."""
    for name in verify.verify(directory)["files"]:
        if name == layout.COMMON:
            continue
        fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            chunks, begins, _ = tensor_file.read_header(fd)
            for chunk, begin in zip(chunks, begins, strict=True):
                place = "" if chunk.shape == chunk.whole else f" at {chunk.offset}"
                yield chunk.key + place, (chunk.dtype, chunk.shape, checksums.of_block(fd, begin, begin + chunk.nbytes))
        finally:
            os.close(fd)


def _state(directory: Path) -> dict[str, Any]:
    """Attached object (with `@r` for that of a rank that differs from rank 0's) -> what is not a tensor."""
    common = json.loads((directory / layout.COMMON).read_bytes())
    found = {"consumed_samples": common["consumed_samples"], **common["state"]}
    for rank, state in common["ranks"].items():
        found |= {f"{name}@{rank}": value for name, value in state.items()}
    return {
        name: _values_alone(value) if name.partition("@")[0] == _VARIABLES else value for name, value in found.items()
    }


def _values_alone(variables: Any) -> dict[str, Any]:
    """Of the training loop's variables what they are: what was known of them before tells of the lives of a job."""
    return {path: tree for path, _, _, _, tree in variables.get("values", ())}
