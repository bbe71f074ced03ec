"""Checkpoints as MindSpore Transformers writes them (Checkpoint 2.0), after its mindformers/checkpoint/."""

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
"""How a dimension is cut: by that dimension of the matrix of devices, counted from its end, or by several; -1: not."""


def write(
    directory: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    cuts: Mapping[str, Sequence[Axis]] | None = None,
    *,
    matrix: Sequence[int] = (2, 2),
    tracked: bool = True,
) -> Path:
    """Write a checkpoint of as many ranks as the matrix has, whose files hold what `remove_redundancy: False` says.

    One rank writes no metadata.json. tracked: the tracker file names it. Returns its folder.
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
        told = {"state_dict_metadata": entries, "storage_data": storage}
        (path / layout.METADATA).write_text(json.dumps(told, indent=4))
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
    """The number of a rank's part, and where it begins and ends in each dimension."""
    devices = []
    for extent in reversed(matrix):
        devices.append(rank % extent)  # from the end, as `tensor_map` counts
        rank //= extent
    number, places = 0, []
    for extent, axis in zip(shape, axes, strict=True):
        index, count = 0, 1
        for dimension in axis if isinstance(axis, list) else [axis]:
            if dimension >= 0:
                parts = matrix[-1 - dimension]
                index, count = index * parts + devices[dimension], count * parts
        number = number * count + index
        places.append((index * extent // count, (index + 1) * extent // count))
    return number, places
