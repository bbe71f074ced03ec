"""JSON from storage, taken for nothing but bytes: read with limits, and looked through before it is used.

Standard library only. Whatever is wrong with it is a ValueError whose message is a part of a sentence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

_HEX = re.compile(r"[0-9a-f]{32}")


def parse(data: bytes) -> Any:
    """The value of JSON. Raises ValueError for what is not JSON, and for what a reader could take for another
    value: a key that stands twice, NaN, nesting beyond what can be followed.
    """
    try:
        return json.loads(data, object_pairs_hook=_unambiguous, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in it")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


# --- kinds of values --------------------------------------------------------------------------------------


def whole(value: object, what: str, least: int = 0) -> int:
    """A whole number from `least` that a file system could count; true and 1.0 are none. Raises ValueError."""
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{what} is not a whole number from {least}")
    return value


def extents(value: object, what: str) -> tuple[int, ...]:
    """A list of whole numbers, as a tuple. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    return tuple(whole(extent, what) for extent in value)


def text(value: object, what: str) -> str:
    """Raises ValueError unless it is text."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is not text")
    return value


def mapping(value: object, what: str) -> dict[str, Any]:
    """Raises ValueError unless it is an object."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def check_part(offset: tuple[int, ...], shape: tuple[int, ...], whole_shape: tuple[int, ...], what: str) -> None:
    """Raises ValueError unless a part of `shape` at `offset` lies inside the whole."""
    ends = [begin + extent for begin, extent in zip(offset, shape, strict=False)]
    if not len(offset) == len(shape) == len(whole_shape) or any(e > w for e, w in zip(ends, whole_shape, strict=True)):
        raise ValueError(f"{what} reaches beyond its tensor")


def plain_name(name: str) -> str:
    """Raises ValueError unless `name` names a file in the directory itself, and nothing else."""
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        length = 0
    if not 0 < length <= 255 or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name[:80]!a} is not the plain name of a file")
    return name


# --- a checkpoint's own -----------------------------------------------------------------------------------


def check_metadata(metadata: Mapping[str, Any], dtypes: Collection[str], block: int) -> None:
    """Raises ValueError unless metadata.json has the form that this version writes.

    dtypes: names of the known ones. block: bytes that one digest is over.
    """
    whole(metadata.get("step"), "`step`")
    whole(metadata.get("world_size"), "`world_size`", 1)
    files = mapping(metadata.get("files"), "`files`")
    for name, entry in files.items():
        plain_name(name)
        size = whole(mapping(entry, f"the entry of {name}").get("bytes"), f"`bytes` of {name}")
        digests = entry.get("xxh3_128")
        if not isinstance(digests, list) or len(digests) != max(1, -(-size // block)):
            raise ValueError(f"`xxh3_128` of {name} is not a list of one digest per {block >> 20} MiB")
        if not all(isinstance(digest, str) and _HEX.fullmatch(digest) for digest in digests):
            raise ValueError(f"`xxh3_128` of {name} holds something else")
    for key, tensor in mapping(metadata.get("tensors"), "`tensors`").items():
        _check_tensor(key[:80], tensor, dtypes, files)


def _check_tensor(key: str, tensor: object, dtypes: Collection[str], files: Collection[str]) -> None:
    found = mapping(tensor, f"the tensor {key}")
    if text(found.get("dtype"), f"`dtype` of {key}") not in dtypes:
        raise ValueError(f"`dtype` of {key} is not known")
    shape = extents(found.get("shape"), f"`shape` of {key}")
    chunks = found.get("chunks")
    if not isinstance(chunks, list) or not chunks:
        raise ValueError(f"{key} has no chunks")
    for chunk in chunks:
        part = mapping(chunk, f"a chunk of {key}")
        offset = extents(part.get("offset"), f"the offset of a chunk of {key}")
        check_part(offset, extents(part.get("shape"), f"the shape of a chunk of {key}"), shape, f"a chunk of {key}")
        text(part.get("name"), f"the name of a chunk of {key}")
        if text(part.get("file"), f"the file of a chunk of {key}") not in files:
            raise ValueError(f"a chunk of {key} lies in no file of the checkpoint")


def check_common(common: object, step: int) -> None:
    """Raises ValueError unless common.json has the form that this version writes, and is of `step`."""
    found = mapping(common, "it")
    if whole(found.get("step"), "`step`") != step:
        raise ValueError(f"it is of step {found['step']}, not {step}")
    whole(found.get("world_size"), "`world_size`", 1)
    whole(found.get("consumed_samples"), "`consumed_samples`")
    mapping(found.get("state"), "`state`")
    for rank, state in mapping(found.get("ranks"), "`ranks`").items():
        mapping(state, f"the state of rank {rank[:20]}")
