"""Writes a checkpoint to storage from snapshot slots, and commits it. Without torch: bytes are copied, not tensors.

The saver process writes the shards of all ranks of its node; a rank without a supervisor writes its own. A crash at any
system call leaves the newest committed checkpoint whole: everything is written and synced under a name
that no reader takes for a checkpoint, metadata.json last, and one rename commits it.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import foreign, health_mark, layout, metadata, seeds, tensor_file, verify
from ftlaunch_contract.checkpoint.retention import PART, remove_ours
from ftlaunch_contract.files import atomic, checksums, untrusted_json

Spent = Callable[
    [int], object
]  # is called with every number of bytes written, and may wait: rate_limit.Bandwidth.spent
MADE_AGAIN = "a later run of the job made this step again"
_PIECE = 1 << 20  # bytes: few enough to be written from the processor's cache
_FLUSH = 8 << 20  # bytes


@dataclass(frozen=True)
class SaveTarget:
    """A checkpoint to be written."""

    checkpoint_dir: Path
    step: int
    why: str
    prefix: str  # of the shard files' names
    world_size: int
    abnormal: str = ""  # why its numbers are not to be trusted, besides what the snapshots say


def prepare(target: SaveTarget) -> Path:
    """Make the directory the shards go to, with our mark alone. Raises OSError, also where another program's lies."""
    target.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    _refuse_foreign(layout.iteration_dir(target.checkpoint_dir, target.step))
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    if directory.exists() and (strangers := remove_ours(directory)):
        raise FileExistsError(errno.EEXIST, strangers)
    return layout.make_incomplete(target.checkpoint_dir, target.step)


def _refuse_foreign(final: Path) -> None:
    """Raises FileExistsError where another program has put something in the place of a checkpoint."""
    if layout.is_foreign(final):
        raise FileExistsError(errno.EEXIST, f"{foreign.whose(final)}; nothing there was changed")


def write_shard(
    target: SaveTarget, rank: int, files: Mapping[str, int], common: bytes, spent: Spent | None = None
) -> int:
    """Write one rank's shard: copy and checksum, fsync, and leave a part file for `commit`; returns the shard's bytes.

    files: group -> descriptor of the slot's tensor file. common: the slot's common.json. Raises OSError (also where
    the directory is not there any more), or tensor_file.Damaged when the slot does not hold what its headers say.
    """
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    part: dict[str, Any] = {"files": {}, "chunks": [], "common": _common_of(common, target, rank)}
    for group, fd in files.items():
        chunks, _, size = tensor_file.read_header(fd)
        if not chunks:
            continue
        name = layout.shard_name(target.prefix, group, rank, target.world_size)
        part["files"][name] = {"bytes": size, checksums.NAME: _copy(fd, directory / name, size, spent)}
        for chunk in chunks:
            entry = {"key": chunk.key, "dtype": chunk.dtype, "whole": chunk.whole, "offset": chunk.offset}
            part["chunks"].append({**entry, "shape": chunk.shape, "file": name, "name": chunk.name})
    atomic.write_durable(directory / PART.format(rank=rank), json.dumps(part).encode())
    return sum(entry["bytes"] for entry in part["files"].values())


def withdraw_shard(target: SaveTarget, rank: int) -> None:
    """Delete what an earlier try has written of a rank's shard, the part file first. Raises OSError."""
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    names = [layout.shard_name(target.prefix, group, rank, target.world_size) for group in layout.GROUPS]
    for name in (PART.format(rank=rank), *names):
        (directory / name).unlink(missing_ok=True)


def write_shard_of(target: SaveTarget, rank: int, slot: Path, spent: Spent | None = None) -> int:
    """`write_shard` from a snapshot slot's directory. Raises OSError or tensor_file.Damaged."""
    with ExitStack() as stack:
        files = {}
        for group in layout.GROUPS:
            fd = os.open(layout.slot_file(slot, group), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            files[group] = fd
        return write_shard(target, rank, files, (slot / layout.COMMON).read_bytes(), spent)


def _common_of(common: bytes, target: SaveTarget, rank: int) -> dict[str, Any]:
    try:
        found = untrusted_json.mapping(untrusted_json.parse(common), "it")
        step = untrusted_json.whole(found.get("step"), "`step`")
        if not isinstance(found.get(layout.OUTSIDE, []), list):
            raise ValueError(f"`{layout.OUTSIDE}` is not a list")
        metadata.trainings(found)
    except ValueError as error:
        raise tensor_file.Damaged(f"the snapshot of rank {rank} cannot be read ({error})") from error
    if step != target.step:
        raise tensor_file.Damaged(f"the snapshot of rank {rank} is of step {step}")
    return found


def _copy(source: int, path: Path, size: int, spent: Spent | None) -> list[str]:
    """Copy `size` bytes, fsync; returns their digests, made on the way."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        found = _copy_bytes(source, fd, size, spent)
        os.fsync(fd)
        return found
    except EOFError:
        raise tensor_file.Damaged("a snapshot is cut short") from None
    finally:
        os.close(fd)


def _copy_bytes(source: int, fd: int, size: int, spent: Spent | None) -> list[str]:
    digest, position = checksums.Running(), 0
    with memoryview(bytearray(min(_PIECE, size))) as buffer:
        while position < size:
            count = os.preadv(source, [buffer[: size - position]], position)
            if not count:
                raise EOFError
            digest.update(buffer[:count])
            atomic.write_all(fd, buffer[:count])
            position += count
            if position % _FLUSH == 0:  # the disk begins now; otherwise the fsync at the end would wait for all of it
                os.posix_fadvise(fd, position - _FLUSH, _FLUSH, os.POSIX_FADV_DONTNEED)
            if spent is not None:
                spent(count)
    return digest.finish()


def commit(
    target: SaveTarget,
    permit: Callable[[], None] = lambda: None,
    displaced: Callable[[Path], object] = lambda _: None,
) -> tuple[Path, int]:
    """Join the ranks' parts and commit: returns the checkpoint's path and its bytes.

    permit: is called last, and raises OSError where this process may commit no more. displaced: told where the
    checkpoint lies now that an earlier run has made of the step.

    Raises OSError, or tensor_file.Damaged where a shard is missing, a rank's state names a tensor that no rank has
    saved, or two ranks have saved different tensors under one key. The rename commits: before it there is no
    checkpoint, after it there is.
    """
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    part_paths = [directory / PART.format(rank=rank) for rank in range(target.world_size)]
    parts = _read_parts(directory, part_paths)
    tensors = _join_tensors(parts)
    common = json.dumps(_join_common(target, [part["common"] for part in parts]), indent=1).encode()
    atomic.write_durable(directory / layout.COMMON, common)
    files = {name: entry for part in parts for name, entry in part["files"].items()}
    files[layout.COMMON] = {"bytes": len(common), checksums.NAME: checksums.of_bytes(common)}
    said = {
        "version": layout.VERSION,
        "step": target.step,
        "world_size": target.world_size,
        "tensors": tensors,
        "files": files,
        health_mark.KEY: health_mark.join([health_mark.of(part["common"]) for part in parts], target.abnormal),
        **metadata.trainings(parts[0]["common"]).entries(),
    }
    for path in part_paths:
        path.unlink()
    atomic.write_durable(directory / layout.METADATA, verify.seal(said))
    atomic.fsync_dir(directory)
    permit()
    is_tracker_foreign = layout.is_tracker_foreign(target.checkpoint_dir)
    final = _rename(target, directory, displaced)
    # The checkpoint is committed. The tracker is a hint: where it cannot be written it is stale until the next commit.
    # The seed is in common.json as well: there a rank sees whether it was given another one.
    with suppress(OSError):
        if not is_tracker_foreign:
            atomic.replace_durable(target.checkpoint_dir / layout.TRACKER, f"{target.step}\n".encode())
        if (seed := seeds.of_snapshot(parts[0]["common"]).job) is not None:
            seeds.keep(target.checkpoint_dir, seed)
    return final, sum(entry["bytes"] for entry in files.values())


def _join_tensors(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What metadata.json says of the tensors that all ranks have saved. Raises tensor_file.Damaged, as commit does."""
    commons = [part["common"] for part in parts]
    outside = [common.get(layout.OUTSIDE, []) for common in commons]
    try:
        tensors = metadata.join_tensors([part["chunks"] for part in parts])
        metadata.check_saved([common["state"] for common in commons], tensors, outside)
    except ValueError as error:
        raise tensor_file.Damaged(str(error)) from error
    return tensors


def _rename(target: SaveTarget, directory: Path, displaced: Callable[[Path], object]) -> Path:
    """Commit; returns the checkpoint's path."""
    final = layout.iteration_dir(target.checkpoint_dir, target.step)
    _refuse_foreign(final)
    if final.exists():  # an earlier run of the job reached this step, and was not resumed from
        displaced(layout.quarantine(target.checkpoint_dir, final, MADE_AGAIN))
    directory.rename(final)
    atomic.fsync_dir(target.checkpoint_dir)
    return final


def _read_parts(directory: Path, paths: Sequence[Path]) -> list[dict[str, Any]]:
    if directory.is_dir() and (missing := [rank for rank, path in enumerate(paths) if not path.exists()]):
        raise tensor_file.Damaged(f"the shard of rank {missing[0]} is not there ({len(missing)} are missing)")
    return [json.loads(path.read_bytes()) for path in paths]


def _join_common(target: SaveTarget, commons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
        **seeds.of_snapshot(first).entries(),
        "state": first["state"],
        "ranks": ranks,  # only those that differ from rank 0's
    }


def discard(target: SaveTarget) -> None:
    """Delete what a failed save has written. Raises OSError."""
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    if directory.exists():
        remove_ours(directory)
