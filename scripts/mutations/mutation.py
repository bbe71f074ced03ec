"""Omits or alters one thing of the saved state at random, in the files of a snapshot in memory."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ftlaunch_contract.checkpoint import layout, tensor_file
from ftlaunch_hooks.state.part_digests import VALUES
from ftlaunch_hooks.tensors.dtypes import TORCH_DTYPES

_FORM = ("kind", "__tensor__", "__array__", "dtype", "shape", "tensors", "dense", "type", "device", "names")
"""keys of common.json that say how the state is to be read: an alteration there is refused, and shows nothing"""


@dataclass(frozen=True)
class Mutation:
    """What was altered."""

    kind: str
    """tensor (of a module or another object), gradient, optimizer, generator or number"""
    name: str
    how: str
    is_sampled: bool = True
    """whether the check of a resume looks at what was altered: False for one value of a tensor that is only sampled"""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.how}"


def mutate(slot: Path, draw: random.Random) -> Mutation | None:
    """Alter one thing in a slot; return None if what was drawn cannot be altered.

    The kind of thing is drawn first, and then evenly one of the things of that kind.
    """
    tensors = list(_tensors(slot))
    numbers = _leaves(json.loads((slot / layout.COMMON).read_bytes())["state"])
    kinds = sorted({_kind(key) for _, key, *_ in tensors} | ({"number"} if numbers else set()))
    kind = draw.choice(kinds)
    if kind == "number":
        return _mutate_number(slot, draw)
    of_kind = [tensor for tensor in tensors if _kind(tensor[1]) == kind]
    return _mutate_tensor(draw.choice(of_kind), kind, draw)


def _kind(key: str) -> str:
    name = key.lower()
    if name.startswith(("opt", "muon")) or ".state." in name:
        return "optimizer"
    if name.startswith(("rng", "generators", "random")):
        return "generator"
    return "gradient" if name.startswith("grad") else "tensor"


# --- tensors ----------------------------------------------------------------------------------------------


def _tensors(slot: Path) -> Iterator[tuple[Path, str, str, int, int]]:
    """Yield file, key, dtype, offset and number of bytes of each tensor that is not empty."""
    for group in layout.GROUPS:
        path = layout.slot_file(slot, group)
        fd = os.open(path, os.O_RDONLY)
        try:
            chunks, offsets, _ = tensor_file.read_header(fd)
        finally:
            os.close(fd)
        for chunk, offset in zip(chunks, offsets, strict=True):
            if chunk.nbytes:
                yield path, chunk.key, chunk.dtype, offset, chunk.nbytes


def _mutate_tensor(saved: tuple[Path, str, str, int, int], kind: str, draw: random.Random) -> Mutation | None:
    path, key, dtype, offset, size = saved
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(size)
        tensor = torch.frombuffer(bytearray(before), dtype=TORCH_DTYPES[dtype])
        how = draw.choice(("left out", "one element", "noise", "older"))
        after = _altered(tensor, how, draw)
        if (raw := after.contiguous().view(torch.uint8).numpy().tobytes()) == before:
            return None
        file.seek(offset)
        file.write(raw)
    return Mutation(kind, key, how, is_sampled=how != "one element" or tensor.numel() <= VALUES)


def _altered(tensor: torch.Tensor, how: str, draw: random.Random) -> torch.Tensor:
    """Return an altered copy of a tensor.

    Args:
        tensor: the saved tensor.
        how: `left out`, as if nothing had been restored (zeros); `one element`; `noise`; or `older`, which moves the
            values a tenth back towards zero, or rotates them.
        draw: the source of chance.
    """
    made = tensor.clone()
    at = draw.randrange(made.numel())
    if how == "left out":
        return torch.zeros_like(made)
    if made.dtype == torch.bool:
        made[at] = ~made[at]
    elif how == "one element" and (made.is_floating_point() or made.is_complex()):
        made[at] = made[at] * 1.5 + 0.01
    elif how == "one element":
        made[at] = made[at] ^ 1
    elif not (made.is_floating_point() or made.is_complex()):
        made = made.roll(1)
    elif how == "noise":
        made = made * (1 + 1e-3 * draw.random()) + 1e-6
    else:
        made = made * 0.9
    return made


# --- numbers ----------------------------------------------------------------------------------------------


def _leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all numbers and truth values in a tree."""
    if isinstance(tree, dict):
        branches = [_leaves(value, (*path, key)) for key, value in tree.items() if key not in _FORM]
        return [leaf for branch in branches for leaf in branch]
    if isinstance(tree, list):
        return [leaf for number, value in enumerate(tree) for leaf in _leaves(value, (*path, number))]
    return [path] if isinstance(tree, bool | int | float) else []


def _mutate_number(slot: Path, draw: random.Random) -> Mutation | None:
    file = slot / layout.COMMON
    common = json.loads(file.read_bytes())
    # A generator's state has hundreds of numbers: each place in the tree counts once, however many numbers it holds.
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path in _leaves(common["state"]):
        groups.setdefault(path[:-1] if isinstance(path[-1], int) else path, []).append(path)
    path = draw.choice(groups[draw.choice(sorted(groups, key=repr))])
    holder = common["state"]
    for key in path[:-1]:
        holder = holder[key]
    value = holder[path[-1]]
    how = draw.choice(("altered", "left out"))
    if isinstance(value, bool):
        holder[path[-1]] = not value
        how = "altered"
    elif how == "left out":
        holder[path[-1]] = type(value)(0)
    else:
        holder[path[-1]] = value + 1 if isinstance(value, int) else value * 1.1 + 1e-3
    if holder[path[-1]] == value:
        return None
    file.write_bytes(json.dumps(common).encode())
    return Mutation("number", ".".join(map(str, path)), f"{how} ({value} -> {holder[path[-1]]})"[:80])
