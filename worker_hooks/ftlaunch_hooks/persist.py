"""From snapshot slots to a committed checkpoint on storage. Standard library only: bytes are copied, not tensors.

The saver process does it for all ranks; a rank without a supervisor does it for itself. A crash at any
system call leaves the newest committed checkpoint whole: everything is written and synced under a name
that no reader takes for a checkpoint, metadata.json last, and one rename commits it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_hooks import atomic, layout

_BLOCK = 8 << 20
_PART = "part_{rank:07d}.json"


@dataclass(frozen=True)
class Target:
    """A checkpoint to be written."""

    checkpoint_dir: Path
    step: int
    why: str
    prefix: str  # of the shard files' names
    world_size: int


def prepare(target: Target) -> Path:
    """Make the directory the shards go to, empty. Raises OSError."""
    target.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    if directory.exists() and (strangers := remove_ours(directory)):
        raise FileExistsError(errno.EEXIST, strangers)
    directory.mkdir()
    return directory


def write_shard(target: Target, rank: int, files: Mapping[str, int], common: bytes) -> None:
    """Write one rank's shard: copy and checksum in one pass, fsync, and leave a part file for `commit`.

    files: group -> descriptor of the slot's tensor file. common: the slot's common.json. Raises OSError,
    or layout.Damaged when the slot does not hold what its headers say.
    """
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    part: dict[str, Any] = {"files": {}, "chunks": [], "common": json.loads(common)}
    if part["common"]["step"] != target.step:
        raise layout.Damaged(f"the snapshot of rank {rank} is of step {part['common']['step']}")
    for group, fd in files.items():
        chunks, _, size = layout.read_header(fd)
        if not chunks:
            continue
        name = layout.shard_name(target.prefix, group, rank, target.world_size)
        part["files"][name] = {"bytes": size, "sha256": _copy(fd, directory / name, size)}
        for chunk in chunks:
            entry = {"key": chunk.key, "dtype": chunk.dtype, "whole": chunk.whole, "offset": chunk.offset}
            part["chunks"].append({**entry, "shape": chunk.shape, "file": name, "name": chunk.name})
    atomic.write_durable(directory / _PART.format(rank=rank), json.dumps(part).encode())


def write_shard_of(target: Target, rank: int, slot: Path) -> None:
    """`write_shard` from a snapshot slot's directory. Raises OSError or layout.Damaged."""
    with ExitStack() as stack:
        files = {}
        for group in layout.GROUPS:
            fd = os.open(layout.slot_file(slot, group), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            files[group] = fd
        write_shard(target, rank, files, (slot / layout.COMMON).read_bytes())


def _copy(source: int, path: Path, size: int) -> str:
    """Copy `size` bytes, fsync; returns their SHA-256."""
    digest = hashlib.sha256()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with mmap.mmap(source, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            for start in range(0, size, _BLOCK):
                with view[start : start + _BLOCK] as block:
                    digest.update(block)
                    atomic.write_all(fd, block)
        os.fsync(fd)
    finally:
        os.close(fd)
    return digest.hexdigest()


def commit(target: Target) -> tuple[Path, int]:
    """Join the ranks' parts and commit: returns the checkpoint's path and its bytes. Raises OSError.

    All shards must have been written. From the rename on the checkpoint is there; before it, it is not.
    """
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    part_paths = [directory / _PART.format(rank=rank) for rank in range(target.world_size)]
    parts = [json.loads(path.read_bytes()) for path in part_paths]
    common = json.dumps(_join_common(target, [part["common"] for part in parts]), indent=1).encode()
    atomic.write_durable(directory / layout.COMMON, common)
    files = {name: entry for part in parts for name, entry in part["files"].items()}
    files[layout.COMMON] = {"bytes": len(common), "sha256": hashlib.sha256(common).hexdigest()}
    metadata = {
        "version": layout.VERSION,
        "step": target.step,
        "world_size": target.world_size,
        "tensors": _join_tensors(parts),
        "files": files,
    }
    for path in part_paths:
        path.unlink()
    atomic.write_durable(directory / layout.METADATA, layout.seal(metadata))
    atomic.fsync_dir(directory)
    final = layout.iteration_dir(target.checkpoint_dir, target.step)
    if final.exists():  # an earlier life of the job reached this step and was not resumed from
        layout.quarantine(target.checkpoint_dir, final, "a later run of the job made this step again")
    directory.rename(final)
    atomic.fsync_dir(target.checkpoint_dir)
    atomic.replace_durable(target.checkpoint_dir / layout.TRACKER, f"{target.step}\n".encode())
    return final, sum(entry["bytes"] for entry in files.values())


def _join_common(target: Target, commons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = commons[0]
    ranks = {str(rank): common["state"] for rank, common in enumerate(commons) if common["state"] != first["state"]}
    return {
        "version": layout.VERSION,
        "step": target.step,
        "why": target.why,
        "world_size": target.world_size,
        "consumed_samples": first["consumed_samples"],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": first["versions"],
        "state": first["state"],
        "ranks": ranks,  # only those that differ from rank 0's
    }


def _join_tensors(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for part in parts:
        for chunk in part["chunks"]:
            tensor = tensors.setdefault(chunk["key"], {"dtype": chunk["dtype"], "shape": chunk["whole"], "chunks": []})
            tensor["chunks"].append({k: chunk[k] for k in ("offset", "shape", "file", "name")})
    return tensors


def discard(target: Target) -> None:
    """Throw away what an attempt to save has written. Raises OSError."""
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    if directory.exists():
        remove_ours(directory)


def retire(checkpoint_dir: Path, keep: int) -> Iterator[tuple[int, str | None]]:
    """Delete all committed checkpoints but the newest `keep`; yields (step, None or what stayed and why).

    The newest is never deleted. What users put beside or into checkpoints stays.
    """
    for step, directory in layout.list_iterations(checkpoint_dir)[max(keep, 1) :]:
        doomed = layout.incomplete_dir(checkpoint_dir, step)
        if doomed.exists() and (strangers := remove_ours(doomed)):
            yield step, strangers
            continue
        directory.rename(doomed)
        yield step, remove_ours(doomed)


def remove_ours(directory: Path) -> str | None:
    """Delete an incomplete checkpoint's files, and it; returns a sentence when something in it is not ours."""
    for entry in list(directory.iterdir()):
        if entry.name in (layout.COMMON, layout.METADATA) or entry.suffix == ".safetensors" or _is_part(entry):
            entry.unlink()
    try:
        directory.rmdir()
    except OSError:
        strangers = ", ".join(sorted(entry.name for entry in directory.iterdir()))
        return f"{directory} stays: {strangers} in it is not ours"
    return None


def _is_part(path: Path) -> bool:
    return path.name.startswith("part_") and path.suffix == ".json"
