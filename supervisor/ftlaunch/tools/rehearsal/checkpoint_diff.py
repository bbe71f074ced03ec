"""Compares two checkpoints bit for bit, without torch. Only reads files."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import layout, tensor_file, verify
from ftlaunch_contract.files import checksums

_RNG = "rng."  # prefix of the keys of random number generators
_STATE = "state"  # branch of an object's tree that holds its state_dict(); not part of the keys of tensors
_VARIABLES = "loop_variables"  # variables of the training loop, which each rank saves


@dataclass(frozen=True)
class Likeness:
    """The differences between two checkpoints; all fields are empty if there are none."""

    tensors: tuple[str, ...] = ()  # keys of tensors that differ, with `@r` if every rank r has its own
    others: tuple[str, ...] = ()  # names of attached objects whose other values differ
    places: tuple[str, ...] = ()  # places of these values, `object.key.key`
    generators: tuple[str, ...] = ()  # keys of random number generators that differ

    @property
    def equal(self) -> bool:
        """Whether tensors and other values are equal; random number generators may differ."""
        return not self.tensors and not self.others

    def without(self, varying: Collection[str]) -> Likeness:
        """Return the differences without some places, and without tensors below these places.

        Args:
            varying: places at which two undisturbed runs differ, too, such as a run's folder, time or number.
        """
        places = [place for place in self.places if not _below(place, varying)]
        tensors = tuple(key for key in self.tensors if not _below(key, varying))
        return Likeness(tensors, _objects(places), tuple(places), self.generators)


def compare(one: Path, other: Path) -> Likeness:
    """Compare the checkpoints in two directories.

    Raises:
        layout.Damaged: a checkpoint is damaged.
        OSError: a file cannot be read.
    """
    mine = dict(_tensors(one))
    theirs = dict(_tensors(other))
    every = mine.keys() | theirs.keys()
    compared = {key for key in every if not key.startswith(_VARIABLES)} | (mine.keys() & theirs.keys())
    keys = sorted(key for key in compared if mine.get(key) != theirs.get(key))
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
    """Return the places, `object.key.key`, at which values other than tensors differ between two checkpoints."""
    mine = _state(one)
    theirs = _state(other)
    found: set[str] = set()
    for name in mine.keys() | theirs.keys():
        base = name.partition("@")[0]
        if base == _VARIABLES:
            found |= set(_different_variables(mine.get(name), theirs.get(name)))
        elif base != "rng":
            found |= set(_different(mine.get(name), theirs.get(name), base))
    return tuple(sorted(found))


def _different_variables(mine: Any, theirs: Any) -> Iterator[str]:
    """Yield the variables that both runs have saved, with other values.

    Variables that only one run saved depend on how that run came to its state: a variable that counts the starts of
    the script has changed in a run that was killed, and has not in an undisturbed run.
    """
    here = _saved_variables(mine)
    there = _saved_variables(theirs)
    for name in here.keys() & there.keys():
        yield from _different(here[name], there[name], f"{_VARIABLES}.{name}")


def _saved_variables(tree: Any) -> dict[str, Any]:
    """Return the row of each saved variable by its name; a row holds where to restore the variable, and its value."""
    rows = tree.get("values") if isinstance(tree, dict) else None
    return {str(row[0]): row for row in rows or [] if isinstance(row, list) and row}


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
    return any(place == above or place.startswith(f"{above}.") for above in varying)


def _tensors(directory: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield for each part of a tensor: its key and place, and its type, shape and the digest of its bytes."""
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
    """Return the values other than tensors, by attached object.

    An object of rank r that differs from the object of rank 0 has the name `name@r`.
    """
    common = json.loads((directory / layout.COMMON).read_bytes())
    found = {"consumed_samples": common["consumed_samples"], **common["state"]}
    for rank, state in common["ranks"].items():
        found |= {f"{name}@{rank}": value for name, value in state.items()}
    return found
