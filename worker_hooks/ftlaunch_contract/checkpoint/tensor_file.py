"""The header of a tensor file: safetensors, with the place of each chunk in its whole tensor.

Snapshot slots and checkpoints share this format; other programs can read the files as plain safetensors. Without torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch_contract.checkpoint import metadata
from ftlaunch_contract.files import untrusted_json

_CHUNKS = "ftlaunch.chunks"  # key in the header's `__metadata__`: JSON, name -> key, offset and whole shape

LONGEST_HEADER = 100 << 20  # bytes, the limit of safetensors itself


DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class Damaged(Exception):
    """A checkpoint cannot be trusted; the message says why, in one sentence without the path."""

    def __init__(self, why: str) -> None:
        """Make a message of one line and bounded length from `why`, which may repeat anything that was read."""
        super().__init__("".join(char if char.isprintable() else "?" for char in why[:400]))


@dataclass(frozen=True)
class Chunk:
    """A tensor in a file: a whole one, or the part of tensor `key` that begins at `offset`."""

    name: str  # the part's key in the file
    dtype: str  # safetensors' name
    shape: tuple[int, ...]  # shape of the part
    key: str  # key of the whole tensor
    offset: tuple[int, ...]  # where the part begins in the whole tensor
    whole: tuple[int, ...]  # shape of the whole tensor

    @property
    def nbytes(self) -> int:
        """Return the size of the part in bytes."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * DTYPE_BYTES[self.dtype]


def whole_chunk(name: str, dtype: str, shape: Sequence[int]) -> Chunk:
    """Return the chunk of a tensor that lies in one piece."""
    return Chunk(name=name, dtype=dtype, shape=tuple(shape), key=name, offset=(0,) * len(shape), whole=tuple(shape))


def build_header(chunks: Sequence[Chunk], least: int = 0) -> tuple[bytes, list[int]]:
    """Build a safetensors header for `chunks` in this order.

    Args:
        chunks: wide dtypes first, as `file_order` sorts them; otherwise a tensor would lie at an odd address.
        least: least length of the header in bytes, so that a header with other chunks can take its place.

    Returns:
        The header, and each chunk's absolute offset in the file in bytes.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts = {
        chunk.name: {"key": chunk.key, "offset": chunk.offset, "shape": chunk.whole}
        for chunk in chunks
        if chunk.whole != chunk.shape or chunk.key != chunk.name
    }
    if parts:
        header["__metadata__"][_CHUNKS] = json.dumps(parts)
        # The offsets once more for torch's HuggingFaceStorageReader, which wants them for all tensors or for none.
        offsets = {chunk.name: {"saved_offsets": chunk.offset} for chunk in chunks}
        header["__metadata__"] |= {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
    position = 0
    begins = []
    for chunk in chunks:
        end = position + chunk.nbytes
        header[chunk.name] = {"dtype": chunk.dtype, "shape": chunk.shape, "data_offsets": [position, end]}
        begins.append(position)
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (max(least - 8, len(text)) - len(text))
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, [start + begin for begin in begins]


def file_order(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Sort chunks as a file holds them: widest dtype first, then by name, so that every tensor is aligned."""
    return sorted(chunks, key=lambda chunk: (-DTYPE_BYTES[chunk.dtype], chunk.name))


def split_off_tail(chunks: Iterable[Chunk], varying: Collection[str]) -> tuple[list[Chunk], list[Chunk]]:
    """Split the chunks of a file into those that keep their places, and those that lie behind them.

    Where a varying chunk would not be aligned otherwise (four bytes of an optimizer's step in front of a float64, for
    example), some chunks that never change go behind the others as well, with as few bytes as possible.

    Args:
        chunks: all chunks of the file.
        varying: names in the file of the chunks whose sizes change.

    Returns:
        The chunks that keep their places, and those behind them, each in the order of a file.
    """
    ordered = file_order(chunks)
    fixed = [chunk for chunk in ordered if chunk.name not in varying]
    tail = [chunk for chunk in ordered if chunk.name in varying]
    while not lies_aligned_behind(fixed, tail):
        # If one chunk has exactly the surplus bytes, it is the only one that has to move.
        odd = _odd_bytes(fixed, tail)
        uneven = [chunk for chunk in fixed if _odd_bytes([chunk], tail)]
        fitting = [chunk for chunk in uneven if _odd_bytes([chunk], tail) == odd]
        moved = min(fitting or uneven, key=lambda chunk: chunk.nbytes)
        fixed.remove(moved)
        tail = file_order([*tail, moved])
    return fixed, tail


def lies_aligned_behind(fixed: Iterable[Chunk], tail: Iterable[Chunk]) -> bool:
    """Whether every chunk of `tail`, which is in the order of a file, is aligned behind the chunks of `fixed`."""
    return _odd_bytes(fixed, tail) == 0


def _odd_bytes(chunks: Iterable[Chunk], tail: Iterable[Chunk]) -> int:
    """Return by how many bytes the end of `chunks` misses the alignment of the widest dtype in `tail`."""
    widest = max((DTYPE_BYTES[chunk.dtype] for chunk in tail), default=1)
    return sum(chunk.nbytes for chunk in chunks) % widest


def read_header(fd: int) -> tuple[list[Chunk], list[int], int]:
    """Read the header of a safetensors file.

    Returns:
        The chunks, their absolute offsets in bytes, and the size in bytes that the file must have.

    Raises:
        Damaged: the header is malformed.
        OSError: the file cannot be read.
    """
    return parse_header(header_bytes(fd))


def header_bytes(fd: int) -> bytes:
    """Return the header of a safetensors file as `build_header` made it. Raises OSError, Damaged."""
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if not 2 <= length <= min(LONGEST_HEADER, os.fstat(fd).st_size - 8):
        raise Damaged("the header of a tensor file is cut short")
    return os.pread(fd, 8 + length, 0)


def parse_header(content: bytes) -> tuple[list[Chunk], list[int], int]:
    """Return what `read_header` returns, for a header that is in memory. Raises Damaged if it is malformed."""
    length = len(content) - 8
    if length < 2 or length > LONGEST_HEADER or int.from_bytes(content[:8], "little") != length:
        raise Damaged("the header of a tensor file is cut short")
    try:
        header = untrusted_json.mapping(untrusted_json.parse(content[8:]), "it")
        about = untrusted_json.mapping(header.pop("__metadata__", {}), "`__metadata__`")
        parts = untrusted_json.mapping(untrusted_json.parse(about.get(_CHUNKS, "{}")), f"`{_CHUNKS}`")
        placed = [_placed(name, entry, parts.get(name)) for name, entry in header.items()]
    except (ValueError, TypeError) as error:
        raise Damaged(f"the header of a tensor file cannot be read ({error})") from error
    end = 0
    for first, last, chunk in sorted(placed, key=lambda place: place[:2]):
        if first != end or last - first != chunk.nbytes:
            raise Damaged(f"the header of a tensor file contradicts itself about {chunk.name}")
        end = last
    return [chunk for _, _, chunk in placed], [8 + length + first for first, _, _ in placed], 8 + length + end


def _placed(name: str, entry: object, part: object) -> tuple[int, int, Chunk]:
    """Return (begin, end, chunk) for a tensor in a header. Raises ValueError."""
    found = untrusted_json.mapping(entry, name)
    if (dtype := untrusted_json.text(found.get("dtype"), f"`dtype` of {name}")) not in DTYPE_BYTES:
        raise ValueError(f"`dtype` of {name} is not known")
    shape = untrusted_json.extents(found.get("shape"), f"`shape` of {name}")
    place = untrusted_json.extents(found.get("data_offsets"), f"`data_offsets` of {name}")
    if len(place) != 2:
        raise ValueError(f"`data_offsets` of {name} are not two")
    begin, end = place
    if part is None:
        return begin, end, whole_chunk(name, dtype, shape)
    whole = untrusted_json.mapping(part, f"the part {name}")
    offset = untrusted_json.extents(whole.get("offset"), f"the offset of {name}")
    whole_shape = untrusted_json.extents(whole.get("shape"), f"the whole shape of {name}")
    metadata.check_part(offset=offset, shape=shape, whole_shape=whole_shape, what=name)
    key = untrusted_json.text(whole.get("key"), f"the key of {name}")
    return begin, end, Chunk(name=name, dtype=dtype, shape=shape, key=key, offset=offset, whole=whole_shape)
