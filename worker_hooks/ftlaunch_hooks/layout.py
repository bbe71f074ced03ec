"""Where snapshots and checkpoints lie and how their files look. Standard library only.

A snapshot slot and a committed checkpoint hold the same two kinds of safetensors files per rank: `model`
and `opt` (optimizer, RNG and every other tensor). Their header's `__metadata__` says of every tensor that
is a part of a larger one where it belongs. The on-storage layout follows MindSpore Transformers'.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_hooks import atomic

VERSION = 1
GROUPS = ("model", "opt")
COMMON = "common.json"
METADATA = "metadata.json"
TRACKER = "latest_checkpointed_iteration.txt"
QUARANTINE = "quarantine"
INCOMPLETE = ".incomplete"

_ITERATION = re.compile(r"iteration_(\d{7,})")
_INCOMPLETE = re.compile(r"iteration_(\d{7,})\.incomplete")
_CHUNKS = "ftlaunch.chunks"
_READ = 8 << 20

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class Damaged(Exception):
    """A checkpoint cannot be trusted; the message says why, in one sentence without the path."""


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

    Raises Damaged when the header is not one.
    """
    try:
        length = int.from_bytes(os.pread(fd, 8, 0), "little")
        if not 2 <= length <= min(100 << 20, os.fstat(fd).st_size - 8):
            raise Damaged("the header of a tensor file is cut short")
        header = json.loads(os.pread(fd, length, 8))
        parts = json.loads(header.pop("__metadata__", {}).get(_CHUNKS, "{}"))
        chunks, offsets, end = [], [], 8 + length
        for name, entry in header.items():
            shape = tuple(entry["shape"])
            part = parts.get(name, {"key": name, "offset": (0,) * len(shape), "shape": shape})
            place = tuple(part["offset"]), tuple(part["shape"])
            chunks.append(Chunk(name, entry["dtype"], shape, part["key"], *place))
            first, last = entry["data_offsets"]
            if first < 0 or last - first != chunks[-1].nbytes:
                raise Damaged(f"the header of a tensor file contradicts itself about {name}")
            offsets.append(8 + length + first)
            end = max(end, 8 + length + last)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"the header of a tensor file cannot be read ({error})") from error
    return chunks, offsets, end


# --- snapshot slots ---------------------------------------------------------------------------------------


def slot_dir(memory_dir: Path, rank: int, slot: int) -> Path:
    """The directory of a snapshot slot; it holds model.safetensors, opt.safetensors and common.json."""
    return memory_dir / f"slot_{rank:05d}_{slot}"


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


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal: what `sha256sum` prints. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ):
            digest.update(block)
    return digest.hexdigest()


def seal(metadata: Mapping[str, Any]) -> bytes:
    """metadata.json's bytes, with a digest over itself."""
    body = dict(metadata)
    body["digest"] = _metadata_digest(body)
    return json.dumps(body, indent=1).encode()


def _metadata_digest(metadata: Mapping[str, Any]) -> str:
    body = {key: value for key, value in metadata.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_metadata(directory: Path) -> dict[str, Any]:
    """metadata.json of a checkpoint, its own digest checked. Raises Damaged."""
    try:
        metadata = json.loads((directory / METADATA).read_bytes())
    except FileNotFoundError:
        raise Damaged("metadata.json is missing") from None
    except ValueError as error:
        raise Damaged(f"metadata.json cannot be read ({error})") from error
    if not isinstance(metadata, dict) or metadata.get("digest") != _metadata_digest(metadata):
        raise Damaged("metadata.json does not match its own checksum")
    if metadata.get("version") != VERSION:
        raise Damaged(f"its layout is version {metadata.get('version')}, this program reads {VERSION}")
    return metadata


def verify(directory: Path, threads: int = 4) -> dict[str, Any]:
    """Check every file of a checkpoint by size and checksum, `threads` at a time; returns its metadata.

    Raises Damaged with the first thing found wrong, OSError when storage does not answer (which says nothing
    about the checkpoint).
    """
    metadata = read_metadata(directory)
    files: Mapping[str, Mapping[str, Any]] = metadata["files"]
    for name, entry in files.items():  # cheap things first
        try:
            size = (directory / name).stat().st_size
        except FileNotFoundError:
            raise Damaged(f"{name} is missing") from None
        if size != entry["bytes"]:
            raise Damaged(f"{name} has {size} bytes, not {entry['bytes']}")
    with ThreadPoolExecutor(threads) as pool:
        for name, problem in zip(files, pool.map(lambda n: _check(directory, n, files[n]), files), strict=True):
            if problem:
                raise Damaged(f"{name} {problem}")
    return metadata


def _check(directory: Path, name: str, entry: Mapping[str, Any]) -> str | None:
    return None if file_digest(directory / name) == entry["sha256"] else "does not match its checksum"


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


@dataclass(frozen=True)
class Refusal:
    """A checkpoint that was refused: its step, why, and where it is now."""

    step: int
    why: str
    to: str


def newest_verified(checkpoint_dir: Path) -> tuple[int, list[Refusal]]:
    """The step of the newest checkpoint that verifies (-1: none), and what was refused on the way.

    What is damaged goes to quarantine with a note why. What cannot be moved, or not be read at this moment, stays
    and is passed over.
    """
    refusals = []
    for step, directory in list_iterations(checkpoint_dir):
        try:
            verify(directory)
        except Damaged as damage:
            try:
                to = str(quarantine(checkpoint_dir, directory, str(damage)))
            except OSError as error:
                to = f"still in {directory} (it could not be moved: {error.strerror})"
            refusals.append(Refusal(step, str(damage), to))
            continue
        except OSError as error:  # storage, not the checkpoint: it stays what and where it is
            refusals.append(Refusal(step, f"it cannot be read ({error.strerror})", f"where it was, {directory}"))
            continue
        return step, refusals
    return -1, refusals


def refused_before(checkpoint_dir: Path) -> bool:
    """Whether checkpoints were refused: with none left, starting from nothing must be asked for."""
    shelter = checkpoint_dir / QUARANTINE
    return shelter.is_dir() and any(path.is_dir() for path in shelter.iterdir())


def supersede(checkpoint_dir: Path) -> Path | None:
    """Put all committed checkpoints aside, for a fresh start; returns where they are now. Raises OSError."""
    found = list_iterations(checkpoint_dir)
    quarantined = checkpoint_dir / QUARANTINE
    if not found and not quarantined.exists():
        return None
    shelter = checkpoint_dir / f"superseded-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    shelter.mkdir()
    for directory in [path for _, path in found] + ([quarantined] if quarantined.exists() else []):
        directory.rename(shelter / directory.name)
    (checkpoint_dir / TRACKER).unlink(missing_ok=True)
    atomic.fsync_dir(checkpoint_dir)
    return shelter
