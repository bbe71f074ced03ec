"""Where snapshots and checkpoints lie and how their files look. Standard library only.

A snapshot slot and a committed checkpoint hold the same two kinds of safetensors files per rank: `model`
and `opt` (optimizer, RNG and every other tensor). Their header's `__metadata__` says of every tensor that
is a part of a larger one where it belongs. The on-storage layout follows MindSpore Transformers'.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract.files import atomic, untrusted_json

VERSION = 2
GROUPS = ("model", "opt")
COMMON = "common.json"
METADATA = "metadata.json"
TRACKER = "latest_checkpointed_iteration.txt"
QUARANTINE = "quarantine"
SKIPPED = "skipped.json"  # see skipped_samples.py
INCOMPLETE = ".incomplete"

_ITERATION = re.compile(r"iteration_(\d{7,})")
_INCOMPLETE = re.compile(r"iteration_(\d{7,})\.incomplete")
_CHUNKS = "ftlaunch.chunks"
_LONGEST_HEADER = 100 << 20  # as in safetensors itself

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class Damaged(Exception):
    """A checkpoint cannot be trusted; the message says why, in one sentence without the path."""

    def __init__(self, why: str) -> None:
        """why: may repeat what was read, whatever that is; here it becomes one line of bounded length."""
        super().__init__("".join(char if char.isprintable() else "?" for char in why[:400]))


@dataclass(frozen=True)
class Chunk:
    """A tensor in a file: a whole one, or the part of tensor `key` that begins at `offset`."""

    name: str  # its key in the file
    dtype: str  # safetensors' name
    shape: tuple[int, ...]  # of this part
    key: str  # of the whole
    offset: tuple[int, ...]  # of this part in the whole
    whole: tuple[int, ...]  # shape of the whole

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * DTYPE_BYTES[self.dtype]


def whole_chunk(name: str, dtype: str, shape: Sequence[int]) -> Chunk:
    """The chunk of a tensor that lies in one piece."""
    return Chunk(name, dtype, tuple(shape), name, (0,) * len(shape), tuple(shape))


# --- safetensors files ------------------------------------------------------------------------------------


def build_header(chunks: Sequence[Chunk]) -> tuple[bytes, list[int]]:
    """Bytes of a safetensors header for `chunks` in this order, and each chunk's absolute file offset.

    Wide dtypes must come first (see `file_order`), or a tensor would lie at an odd address.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts = {
        c.name: {"key": c.key, "offset": c.offset, "shape": c.whole}
        for c in chunks
        if c.whole != c.shape or c.key != c.name
    }
    if parts:
        header["__metadata__"][_CHUNKS] = json.dumps(parts)
        # the same for torch's HuggingFaceStorageReader, which wants it of every tensor of a file or of none
        offsets = {c.name: {"saved_offsets": c.offset} for c in chunks}
        header["__metadata__"] |= {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
    position, begins = 0, []
    for chunk in chunks:
        end = position + chunk.nbytes
        header[chunk.name] = {"dtype": chunk.dtype, "shape": chunk.shape, "data_offsets": [position, end]}
        begins.append(position)
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, [start + begin for begin in begins]


def file_order(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The order in a file: widest dtype first, then by name, so that every tensor is aligned."""
    return sorted(chunks, key=lambda c: (-DTYPE_BYTES[c.dtype], c.name))


def read_header(fd: int) -> tuple[list[Chunk], list[int], int]:
    """Chunks of a safetensors file, their absolute offsets, and the size the file must have.

    Raises Damaged when the header is not one, OSError.
    """
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if not 2 <= length <= min(_LONGEST_HEADER, os.fstat(fd).st_size - 8):
        raise Damaged("the header of a tensor file is cut short")
    try:
        header = untrusted_json.mapping(untrusted_json.parse(os.pread(fd, length, 8)), "it")
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
    """(begin, end, chunk) of a tensor in a header. Raises ValueError."""
    found = untrusted_json.mapping(entry, name)
    if (dtype := untrusted_json.text(found.get("dtype"), f"`dtype` of {name}")) not in DTYPE_BYTES:
        raise ValueError(f"`dtype` of {name} is not known")
    shape = untrusted_json.extents(found.get("shape"), f"`shape` of {name}")
    place = untrusted_json.extents(found.get("data_offsets"), f"`data_offsets` of {name}")
    if len(place) != 2:
        raise ValueError(f"`data_offsets` of {name} are not two")
    if part is None:
        return *place, whole_chunk(name, dtype, shape)
    whole = untrusted_json.mapping(part, f"the part {name}")
    offset = untrusted_json.extents(whole.get("offset"), f"the offset of {name}")
    around = untrusted_json.extents(whole.get("shape"), f"the whole shape of {name}")
    untrusted_json.check_part(offset, shape, around, name)
    return *place, Chunk(
        name, dtype, shape, untrusted_json.text(whole.get("key"), f"the key of {name}"), offset, around
    )


# --- snapshot slots ---------------------------------------------------------------------------------------


def slot_dir(memory_dir: Path, rank: int, slot: int) -> Path:
    """The directory of a snapshot slot; it holds model.safetensors, opt.safetensors and common.json."""
    return memory_dir / f"slot_{rank:05d}_{slot}"


def storage_slots(checkpoint_dir: Path, name: str) -> Path:
    """Where snapshot slots lie that there is no room for in memory; name: of the job."""
    return checkpoint_dir / f".staged-{name}"


def remove_slot(directory: Path) -> None:
    """Delete a slot; one that lies on storage there too, with the directory that it lay in. Raises OSError."""
    if not directory.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
        return
    target = directory.readlink()
    shutil.rmtree(target, ignore_errors=True)  # storage that does not answer shall not keep the link
    with contextlib.suppress(OSError):
        target.parent.rmdir()  # the last one succeeds
    directory.unlink()


def remove_slots(memory_dir: Path) -> None:
    """Delete all slots of all ranks. Raises OSError."""
    for directory in memory_dir.glob("slot_*"):
        remove_slot(directory)


def slot_file(directory: Path, group: str) -> Path:
    """The tensor file of `group` in a slot."""
    return directory / f"{group}.safetensors"


# --- checkpoints ------------------------------------------------------------------------------------------


def iteration_dir(checkpoint_dir: Path, step: int) -> Path:
    """Where the committed checkpoint of a step lies."""
    return checkpoint_dir / f"iteration_{step:07d}"


def incomplete_dir(checkpoint_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step is written before it is committed."""
    return checkpoint_dir / f"iteration_{step:07d}{INCOMPLETE}"


def shard_name(prefix: str, group: str, rank: int, world_size: int) -> str:
    """File name of a rank's shard."""
    return f"{prefix}-{group}-{rank:07d}-{world_size:07d}.safetensors"


def list_iterations(checkpoint_dir: Path) -> list[tuple[int, Path]]:
    """Committed checkpoints, newest first; empty where the directory is missing. Nothing is verified."""
    return _list(checkpoint_dir, _ITERATION)


def step_of(directory: Path) -> int | None:
    """The step that a directory's name says it is a committed checkpoint of."""
    named = _ITERATION.fullmatch(directory.name)
    return int(named[1]) if named else None


def read_tracker(checkpoint_dir: Path) -> int | None:
    """The step that the tracker file names; None when it is missing or torn. It is a hint to readers, no more."""
    try:
        return int((checkpoint_dir / TRACKER).read_bytes()[:32])
    except (OSError, ValueError):
        return None


def list_incomplete(checkpoint_dir: Path) -> list[tuple[int, Path]]:
    """What interrupted saves (or deletions) have left, newest first."""
    return _list(checkpoint_dir, _INCOMPLETE)


def _list(checkpoint_dir: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        entries = [e for e in os.scandir(checkpoint_dir) if e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    found = [(int(m[1]), Path(e.path)) for e in entries if (m := pattern.fullmatch(e.name))]
    return sorted(found, reverse=True)


def quarantine(checkpoint_dir: Path, directory: Path, why: str) -> Path:
    """Move a checkpoint that is refused out of the way, with a note why; nothing is deleted. Raises OSError."""
    shelter = checkpoint_dir / QUARANTINE
    shelter.mkdir(exist_ok=True)
    target, number = shelter / directory.name, 1
    while target.exists():
        target, number = shelter / f"{directory.name}.{number}", number + 1
    atomic.write_durable(shelter / f"{target.name}.why.txt", f"{why}\n".encode())
    directory.rename(target)
    atomic.fsync_dir(shelter)
    atomic.fsync_dir(checkpoint_dir)
    return target


def refused_before(checkpoint_dir: Path) -> bool:
    """Whether checkpoints were refused: with none left, starting from nothing must be asked for."""
    shelter = checkpoint_dir / QUARANTINE
    return shelter.is_dir() and any(path.is_dir() for path in shelter.iterdir())


def supersede(checkpoint_dir: Path, above: int = -1) -> Path | None:
    """Put committed checkpoints of steps above `above` aside; returns where they are now. Raises OSError.

    All of them, for a fresh start: then those in quarantine go too, and the list of samples to skip.
    """
    found = [path for step, path in list_iterations(checkpoint_dir) if step > above]
    if above < 0:
        also = (checkpoint_dir / QUARANTINE, checkpoint_dir / SKIPPED)
        found += [path for path in also if path.exists()]
    if not found:
        return None
    name = f"superseded-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    shelter, number = checkpoint_dir / name, 1
    while shelter.exists():  # the clock was set back, say
        shelter, number = checkpoint_dir / f"{name}.{number}", number + 1
    shelter.mkdir()
    for directory in found:
        directory.rename(shelter / directory.name)
    if above < 0:
        (checkpoint_dir / TRACKER).unlink(missing_ok=True)
    else:
        atomic.replace_durable(checkpoint_dir / TRACKER, f"{above}\n".encode())
    atomic.fsync_dir(checkpoint_dir)
    return shelter
