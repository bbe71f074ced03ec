"""Writes checkpoints as MindSpore Transformers does (Checkpoint 2.0), after its mindformers/checkpoint/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ftlaunch_contract.checkpoint import layout

Axis = int | list[int]
"""how a dimension is cut: by a dimension of the device matrix, counted from the end; by several; or not, which is -1"""


def write(
    directory: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    cuts: Mapping[str, Sequence[Axis]] | None = None,
    *,
    matrix: Sequence[int] = (2, 2),
    tracked: bool = True,
) -> Path:
    """Write a checkpoint of as many ranks as the device matrix has, as with `remove_redundancy: False`.

    A single rank writes no metadata.json.

    Args:
        directory: the checkpoint directory.
        step: the step of the checkpoint.
        tensors: the whole tensors of the model, by key.
        cuts: how each dimension of a tensor is cut; a tensor that is not named is uncut.
        matrix: the device matrix.
        tracked: whether the tracker file names the checkpoint.

    Returns:
        The folder of the checkpoint.
    """
    world = torch.Size(matrix).numel()
    path = directory / f"iteration_{step:08d}"
    path.mkdir(parents=True)
    entries: dict[str, Any] = {}
    storage: dict[str, list[dict[str, Any]]] = {}
    for rank in range(world):
        name, optimizer = (layout.shard_name("net", group, rank, world) for group in layout.GROUPS)
        parts = {}
        for key, tensor in tensors.items():
            axes = (cuts or {}).get(key, [-1] * tensor.dim())
            number, places = _part(tensor.shape, axes, matrix, rank)
            part = tensor[tuple(slice(begin, end) for begin, end in places)]
            parts[key] = part.detach().clone().contiguous()
            entry = entries.setdefault(key, _entry(tensor, part, axes, matrix))
            chunk = {"global_offset": [number], "local_shape": list(part.shape)}
            if chunk not in entry["chunk"]:
                entry["chunk"].append(chunk)
            storage.setdefault(str((key, (number,))), []).append({"file_name": name, "storage_rank": rank})
        save_file(parts, path / name)
        save_file({f"moment1.{key}": torch.ones_like(part) for key, part in parts.items()}, path / optimizer)
    common = {"epoch_num": 1, "step_num": step, "global_step": step, "loss_scale": None, "global_batch_size": 8}
    (path / layout.COMMON).write_text(json.dumps(common, indent=4))
    if world > 1:
        metadata = {"state_dict_metadata": entries, "storage_data": storage}
        (path / layout.METADATA).write_text(json.dumps(metadata, indent=4))
    if tracked:
        (directory / layout.TRACKER).write_text(str(step))
    return path


def _entry(whole: Tensor, part: Tensor, axes: Sequence[Axis], matrix: Sequence[int]) -> dict[str, Any]:
    return {
        "properties": {"dtype": "Float32", "replica_id": [0], "allow_shape_mismatch": False, "allow_to_save": True},
        "global_shape": list(whole.shape),
        "axis_fragmentations": [all_ // own for all_, own in zip(whole.shape, part.shape, strict=True)],
        "layout": {
            "device_matrix": list(matrix),
            "tensor_map": list(axes),
            "interleaved_parallel": False,
            "alias_name": [f"axis{number}" for number in range(len(matrix))],
            "rank_list": list(range(torch.Size(matrix).numel())),
        },
        "chunk": [],
    }


def _part(
    shape: Sequence[int], axes: Sequence[Axis], matrix: Sequence[int], rank: int
) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of a rank's part, and where the part begins and ends in each dimension."""
    devices = []
    for extent in reversed(matrix):
        devices.append(rank % extent)  # in the order in which `tensor_map` counts: from the end
        rank //= extent
    number = 0
    places = []
    for extent, axis in zip(shape, axes, strict=True):
        index = 0
        count = 1
        for dimension in axis if isinstance(axis, list) else [axis]:
            if dimension >= 0:
                parts = matrix[-1 - dimension]
                index = index * parts + devices[dimension]
                count = count * parts
        number = number * count + index
        places.append((index * extent // count, (index + 1) * extent // count))
    return number, places
