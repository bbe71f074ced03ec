"""The tensors of a checkpoint that another library wrote, for attached modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.foreign_formats import Format
from ftlaunch_contract.progress import Advance, ignore
from ftlaunch_hooks.storage.foreign.dcp_folder import pieces_of_dcp
from ftlaunch_hooks.storage.foreign.hf_folder import pieces_of_folder, pieces_of_safetensors
from ftlaunch_hooks.storage.foreign.mindspore_folder import pieces_of_mindspore
from ftlaunch_hooks.storage.foreign.names import Match, best_match
from ftlaunch_hooks.storage.foreign.sources import PickedTensors, unstacked
from ftlaunch_hooks.storage.foreign.torch_files import pieces_of_file
from ftlaunch_hooks.storage.reading import read
from ftlaunch_hooks.storage.saved_tensors import SavedChunk
from ftlaunch_hooks.tensors.json_codec import StateError

_READERS: Mapping[Format, Callable[[Path], dict[str, list[SavedChunk]]]] = {
    Format.HF: pieces_of_folder,
    Format.SAFETENSORS: pieces_of_safetensors,
    Format.DCP: pieces_of_dcp,
    Format.TORCH: pieces_of_file,
    Format.MINDSPORE: pieces_of_mindspore,
}


class ForeignWeights:
    """What such a checkpoint holds."""

    def __init__(self, path: Path, kind: Format) -> None:
        """Raises OSError, and Damaged when it cannot be read."""
        self._pieces = _READERS[kind](path)
        if not self._pieces:
            raise Damaged("it holds no tensors")

    def fit(self, name: str, tensors: Mapping[str, Tensor]) -> Match:
        """Where the tensors of the module `name` are."""
        groups: dict[int, list[str]] = {}
        for one, tensor in tensors.items():
            groups.setdefault(id(tensor), []).append(one)
        return best_match(list(groups.values()), self._pieces.keys(), name)

    def _check_layers(self, name: str, fit: Match) -> None:
        """Raises StateError where a tensor has other layers stacked than the module has."""
        wanted: dict[str, set[int]] = {}
        for place in fit.places.values():
            if place.index is not None:
                wanted.setdefault(place.key, set()).add(place.index)
        for key, layers in wanted.items():
            there = self._pieces[key][0].chunk.whole[0]
            if layers != set(range(there)):
                raise StateError(f"cannot load weights: {key} has {there} layers, and `{name}` has {len(layers)}")

    def plan(
        self, name: str, tensors: Mapping[str, Tensor], fit: Match, advance: Advance = ignore
    ) -> tuple[Callable[[], None], Sequence[str]]:
        """Check that shapes fit, changing nothing; returns what fills the tensors, and names whose type differs.

        fit: a whole one. advance: told of bytes that are read. Raises StateError, and Damaged where a part of a tensor
        is missing.
        """
        self._check_layers(name, fit)
        picked, other_types = PickedTensors(), []
        for one, tensor in tensors.items():
            place = fit.places[one]
            pieces = self._pieces[place.key]
            picked.put(one, pieces if place.index is None else unstacked(pieces, place.index))
            dtype, shape = picked.info(one)
            if shape != tuple(tensor.shape) or dtype.is_floating_point != tensor.dtype.is_floating_point:
                raise StateError(
                    f"cannot load weights: `{name}.{one}` is {tuple(tensor.shape)} of {tensor.dtype}, and"
                    f" {place.key} is {shape} of {dtype}"
                )
            if dtype != tensor.dtype:
                other_types.append(one)
        picked.check()

        def fill() -> None:
            with torch.no_grad():
                read(picked, {one: tensor.detach() for one, tensor in tensors.items()}, advance)

        return fill, other_types
