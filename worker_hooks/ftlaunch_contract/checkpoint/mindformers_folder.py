"""Reads which tensors a checkpoint of MindSpore Transformers (Checkpoint 2.0) holds, and where their parts belong.

The weights lie in one file, or in several, cut into parts. metadata.json says for every tensor into how many parts each
dimension is cut (`axis_fragmentations`), and which files hold which part. `global_offset` is the number of a part,
counted row by row, and not a place in the tensor: mindformers/checkpoint/sharded_tensor.py computes it from the device
matrix in `layout` and a rank. This module computes it again, for the rank that has stored the part, because there were
releases that named the files of other ranks, which hold other parts of the same shape. A task on one card writes no
metadata.json, as its tensors are whole. Without torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import tensor_file
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged
from ftlaunch_contract.files.untrusted_json import extents, mapping, parse, text, whole
from ftlaunch_contract.foreign_formats import MINDSPORE_FILE

_METADATA = "metadata.json"

Parts = dict[str, list[tuple[str, Chunk]]]
"""tensor -> for each of its parts the name of a file that holds the part, and the part's place in the whole"""
_Files = Mapping[str, Mapping[str, Chunk]]
"""name of a file -> tensor -> the part of the tensor in that file"""


def parts_of(folder: Path) -> Parts:
    """Return the parts of all weights; optimizers lie in other files.

    Raises:
        Damaged: files are missing, or contradict metadata.json.
        OSError: a file cannot be read.
    """
    files = {name: _chunks(folder / name) for name in _weight_files(folder)}
    try:
        content = (folder / _METADATA).read_bytes()
    except FileNotFoundError:
        if len(files) > 1:
            why = f"it has {len(files)} files of weights and no {_METADATA}, which says how they belong together"
            raise Damaged(why) from None
        [(name, chunks)] = files.items()
        return {key: [(name, chunk)] for key, chunk in chunks.items()}
    try:
        return _joined(files, mapping(parse(content), "it"))
    except ValueError as error:
        raise Damaged(f"its {_METADATA} and its files of weights cannot be brought together: {error}") from error


def _weight_files(folder: Path) -> list[str]:
    """Return the names of all files of weights. Raises Damaged unless they are exactly the files of one save."""
    matches = [match for entry in folder.iterdir() if (match := MINDSPORE_FILE.fullmatch(entry.name))]
    found = [match for match in matches if match["group"] == "model"]
    if not found:
        raise Damaged("it has no file of weights")
    if len(saves := {(match["prefix"], match["total"]) for match in found}) > 1:
        raise Damaged(f"it has files of weights of {len(saves)} saves, by their names")
    total = int(found[0]["total"])
    if len(found) != total or {int(match["number"]) for match in found} != set(range(total)):
        raise Damaged(f"of its {total} files of weights {len(found)} are there")
    return [match.string for match in found]


def _chunks(path: Path) -> dict[str, Chunk]:
    """Return what a file holds: tensor -> chunk. Raises OSError, Damaged."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks, _, size = tensor_file.read_header(fd)
        if os.fstat(fd).st_size < size:
            raise Damaged(f"{path.name} is cut short")
    finally:
        os.close(fd)
    return {chunk.name: chunk for chunk in chunks}


def _joined(files: _Files, metadata: Mapping[str, Any]) -> Parts:
    """Return every tensor that any file holds, with all its parts. Raises ValueError."""
    tensors = mapping(metadata.get("state_dict_metadata"), "`state_dict_metadata`")
    storage = mapping(metadata.get("storage_data"), "`storage_data`")
    joined = {}
    for key in sorted({key for chunks in files.values() for key in chunks}):
        if key not in tensors:
            raise ValueError(f"nothing is said about {key}")
        entry = mapping(tensors[key], f"the entry of {key}")
        joined[key] = _parts(key, entry, storage=storage, files=files)
    return joined


def _parts(key: str, entry: Mapping[str, Any], storage: Mapping[str, Any], files: _Files) -> list[tuple[str, Chunk]]:
    """Return for each part of a tensor the file that holds the part, and the part's place. Raises ValueError.

    entry: the tensor's entry in `state_dict_metadata`. storage: `storage_data`.
    """
    size = extents(entry.get("global_shape"), f"`global_shape` of {key}")
    cuts = extents(entry.get("axis_fragmentations"), f"`axis_fragmentations` of {key}")
    if len(cuts) != len(size) or any(cut == 0 or extent % cut for extent, cut in zip(size, cuts, strict=True)):
        raise ValueError(f"{key} is not cut into equal parts")
    listed = entry.get("chunk")
    if not isinstance(listed, list) or len(listed) != prod(cuts):
        raise ValueError(f"not all parts of {key} are listed")
    numbers = [extents(mapping(part, f"a part of {key}").get("global_offset"), "an offset") for part in listed]
    if sorted(numbers) != [(number,) for number in range(len(listed))]:
        raise ValueError(f"the parts of {key} are not numbered one by one, and where they belong is not known")
    shape = tuple(extent // cut for extent, cut in zip(size, cuts, strict=True))
    layout = mapping(entry.get("layout"), f"`layout` of {key}")
    parts = []
    for number in range(len(listed)):
        name, rank = _place(key, number, storage)
        if _number_of(rank, layout, cuts=cuts, key=key) != number:
            raise ValueError(f"part {number} of {key} is said to be with rank {rank}, which has another one")
        if name not in files or key not in files[name]:
            raise ValueError(f"part {number} of {key} is said to be in {name}, and no such file of weights has it")
        chunk = files[name][key]
        if chunk.shape != shape:
            raise ValueError(f"part {number} of {key} is {chunk.shape}, and not {shape}")
        offset = _offset(number, cuts, shape)
        part = Chunk(name=key, dtype=chunk.dtype, shape=shape, key=key, offset=offset, whole=size)
        parts.append((name, part))
    if len({chunk.dtype for _, chunk in parts}) > 1:
        raise ValueError(f"the parts of {key} are of several types")
    return parts


def _place(key: str, number: int, storage: Mapping[str, Any]) -> tuple[str, int]:
    """Return the file of a part and the rank that has saved it, the first of several such ranks. Raises ValueError."""
    what = f"the place of part {number} of {key}"
    places = storage.get(str((key, (number,))))  # the library's own spelling of the key: str() of a tuple
    if not isinstance(places, list) or not places:
        raise ValueError(f"{what} is not told")
    found = mapping(places[0], what)
    return text(found.get("file_name"), what), whole(found.get("storage_rank"), what)


def _number_of(rank: int, layout: Mapping[str, Any], cuts: Sequence[int], key: str) -> int:
    """Return the number of the part that a rank has, computed from the device matrix. Raises ValueError."""
    if layout.get("interleaved_parallel") is not False:
        raise ValueError(f"{key} is cut in an interleaved way, or it is not told how")
    matrix = extents(layout.get("device_matrix"), f"`device_matrix` of {key}")
    ranks = extents(layout.get("rank_list"), f"`rank_list` of {key}")
    axes = layout.get("tensor_map")
    if not isinstance(axes, list) or len(axes) != len(cuts):
        raise ValueError(f"`tensor_map` of {key} is not a list of its dimensions")
    if len(ranks) != prod(matrix) or rank not in ranks:
        raise ValueError(f"rank {rank} has no place in `device_matrix` of {key}")
    place = ranks.index(rank)
    number = 0
    for axis, cut in zip(axes, cuts, strict=True):
        count = 1
        for dimension in axis if isinstance(axis, list) else [axis]:
            if whole(dimension, f"`tensor_map` of {key}", least=-1) >= len(matrix):
                raise ValueError(f"`tensor_map` of {key} names a dimension that is not there")
            if dimension != -1:  # -1: not cut
                extent = matrix[-1 - dimension]
                number = number * extent + place // prod(matrix[len(matrix) - dimension :]) % extent
                count *= extent
        if count != cut:
            raise ValueError(f"`layout` and `axis_fragmentations` of {key} contradict each other")
    return number


def _offset(number: int, cuts: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return where a part begins in its tensor. shape: that of the part."""
    offset: list[int] = []
    for cut, extent in zip(reversed(cuts), reversed(shape), strict=True):
        number, index = divmod(number, cut)
        offset.insert(0, index * extent)
    return tuple(offset)
