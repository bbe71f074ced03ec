"""Reads the tensors of attached modules from a checkpoint that another library wrote."""

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
    """The tensors in a checkpoint that another library wrote."""

    def __init__(self, path: Path, kind: Format) -> None:
        """Open the checkpoint. Raises OSError, and Damaged if it cannot be read."""
        self._pieces = _READERS[kind](path)
        if not self._pieces:
            raise Damaged("it holds no tensors")

    def fit(self, name: str, tensors: Mapping[str, Tensor]) -> Match:
        """Find the tensors of the attached module `name`. tensors: those of the module, by their names in it."""
        groups: dict[int, list[str]] = {}
        for tensor_name, tensor in tensors.items():
            groups.setdefault(id(tensor), []).append(tensor_name)
        return best_match(list(groups.values()), self._pieces.keys(), name)

    def _check_layers(self, name: str, fit: Match) -> None:
        """Raise StateError if the stacked layers of a tensor are not those of the module."""
        wanted: dict[str, set[int]] = {}
        for place in fit.places.values():
            if place.index is not None:
                wanted.setdefault(place.key, set()).add(place.index)
        for key, layers in wanted.items():
            count = self._pieces[key][0].chunk.whole[0]
            if layers != set(range(count)):
                raise StateError(f"cannot load weights: {key} has {count} layers, and `{name}` has {len(layers)}")

    def plan(
        self, name: str, tensors: Mapping[str, Tensor], fit: Match, advance: Advance = ignore
    ) -> tuple[Callable[[], None], Sequence[str]]:
        """Check that shapes fit, without changing anything.

        Args:
            name: the name under which the module is attached.
            tensors: the module's tensors, by their names in it.
            fit: a complete match.
            advance: told the number of bytes that are read.

        Returns:
            A function that fills the tensors, and the names of tensors whose dtype differs.

        Raises:
            StateError: a shape does not fit.
            Damaged: a part of a tensor is missing.
        """
        self._check_layers(name, fit)
        picked = PickedTensors()
        other_dtypes = []
        for tensor_name, tensor in tensors.items():
            place = fit.places[tensor_name]
            pieces = self._pieces[place.key]
            picked.put(tensor_name, pieces if place.index is None else unstacked(pieces, place.index))
            dtype, shape = picked.info(tensor_name)
            if shape != tuple(tensor.shape) or dtype.is_floating_point != tensor.dtype.is_floating_point:
                raise StateError(
                    f"cannot load weights: `{name}.{tensor_name}` is {tuple(tensor.shape)} of {tensor.dtype}, and"
                    f" {place.key} is {shape} of {dtype}"
                )
            if dtype != tensor.dtype:
                other_dtypes.append(tensor_name)
        picked.check()

        def fill() -> None:
            with torch.no_grad():
                read(picked, {key: tensor.detach() for key, tensor in tensors.items()}, advance)

        return fill, other_dtypes
