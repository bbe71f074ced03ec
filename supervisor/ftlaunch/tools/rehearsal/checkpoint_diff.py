"""Compares two checkpoints bit for bit, without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import layout, tensor_file, verify
from ftlaunch_contract.files import checksums

_RNG = "rng."  # keys of random number generators begin so


@dataclass(frozen=True)
class Likeness:
    """What differs between two checkpoints; nothing where both are empty."""

    tensors: tuple[str, ...] = ()  # keys, with the rank's `@r` where every rank has one of its own
    others: tuple[str, ...] = ()  # names of attached objects, for what is not a tensor
    generators: tuple[str, ...] = ()  # random number generators

    @property
    def equal(self) -> bool:
        """Whether all that is trained is the same."""
        return not self.tensors and not self.others


def compare(one: Path, other: Path) -> Likeness:
    """What differs between the checkpoints in two directories. Raises layout.Damaged, OSError."""
    mine, theirs = dict(_tensors(one)), dict(_tensors(other))
    keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    return Likeness(
        tensors=tuple(key for key in keys if not key.startswith(_RNG)),
        others=_others(_state(one), _state(other)),
        generators=tuple(key for key in keys if key.startswith(_RNG)),
    )


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
    return found


def _others(mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, ...]:
    names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    return tuple(name for name in names if name.split("@")[0] != "rng")
