"""Reads files of torch.save: state_dicts, at any depth, and Lightning's checkpoints.

Such a file is a pickle, which could run anything. It is read with torch's `weights_only`, which makes only tensors and
plain values, and it is refused if it holds more.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_hooks.storage.foreign.sources import piece_of
from ftlaunch_hooks.storage.saved_tensors import SavedChunk

_MAX_DEPTH = 20  # of nested dictionaries


def pieces_of_file(path: Path) -> dict[str, list[SavedChunk]]:
    """Return each tensor by key, with everything in front of it (`state_dict.layer.weight`).

    Raises OSError, Damaged.
    """
    return {key: [piece_of(key, tensor)] for key, tensor in _tensors(load(path))}


def load(path: Path) -> object:
    """Return what a file holds; its tensors stay in the file until they are read. Raises OSError, Damaged."""
    try:
        with path.open("rb") as file:
            mapped = file.read(2) == b"PK"  # torch's own format since 1.6; an older one is read whole
        return torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except pickle.UnpicklingError as error:
        raise Damaged(
            f"{path.name} holds more than tensors and plain values, which is not read, as it could run anything"
            f" ({_reason(error)}); save its state_dict alone"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise Damaged(f"{path.name} cannot be read ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    """Return the line of torch's message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "GLOBAL" in line or "class" in line]
    return (named or lines or [type(error).__name__])[0][:200]


def _tensors(value: object, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if prefix:
            yield prefix[:-1], value.detach()
    elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for name, entry in value.items():
            if isinstance(name, str):
                yield from _tensors(entry, f"{prefix}{name}.", depth + 1)
