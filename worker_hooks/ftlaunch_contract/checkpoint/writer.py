"""Writes a checkpoint to storage from snapshot slots, and commits it. Without torch: bytes are copied, not tensors.

    prepare(target)             # once
    write_shard(target, rank)   # once for each rank
    commit(target)              # once, when all shards are written

Words:

- Slot: the directory of one rank's snapshot, in memory or on storage. It holds a tensor file for each group, and
  common.json with everything that is not a tensor.
- Group: a class of tensors, one of layout.GROUPS (`model`: those of models, `opt`: all others).
- Shard: what one rank adds to the checkpoint: a copy of the slot's tensor file for each group that has tensors.
- Part: a rank's file part_RANK.json, which lists the shard's files with their digests, the tensors in them, and the
  slot's common.json. `commit` joins all parts into metadata.json and common.json of the checkpoint.

The saver process writes the shards of all ranks of its node, and a job's only saver commits. On several nodes the saver
of the head's node prepares and commits. Without a supervisor each rank writes its own shard, and rank 0 prepares and
commits.

A crash at any
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

Spent = Callable[[int], object]
"""Called after every write with the number of its bytes. May wait, so that the writer keeps to a bandwidth, as
rate_limit.Bandwidth.spent does."""
REPEATED_STEP = "a later run of the job made this step again"
"""why a committed checkpoint was moved to the quarantine by a newer one of the same step"""
_PIECE_BYTES = 1 << 20  # of one write; few enough to be written from the processor's cache
_FLUSH_BYTES = 8 << 20  # that are written before the disk is told to begin


@dataclass(frozen=True)
class SaveTarget:
    """A checkpoint that is to be written."""

    checkpoint_dir: Path  # of all checkpoints
    step: int
    why: str  # reason for the checkpoint: the lower-case name of a protocol.Why
    prefix: str  # first part of the shard files' names
    world_size: int  # number of ranks, each of which has a shard
    abnormal: str = ""  # a reason besides the snapshots' marks not to trust the checkpoint's numbers


def prepare(target: SaveTarget) -> Path:
    """Make the directory for the shards, with only our mark in it. What an earlier try has left there is deleted.

    Returns:
        The directory.

    Raises:
        FileExistsError: another program has put something in the checkpoint's place, or into what the earlier try has
            left.
        OSError: the directory cannot be made.
    """
    target.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    _refuse_foreign(layout.iteration_dir(target.checkpoint_dir, target.step))
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    if directory.exists() and (reason := remove_ours(directory)):
        raise FileExistsError(errno.EEXIST, reason)
    return layout.make_incomplete(target.checkpoint_dir, target.step)


def _refuse_foreign(final: Path) -> None:
    """Raise FileExistsError if another program has put something in the place of a checkpoint."""
    if layout.is_foreign(final):
        raise FileExistsError(errno.EEXIST, f"{foreign.whose(final)}; nothing there was changed")


def write_shard(
    target: SaveTarget, rank: int, files: Mapping[str, int], common: bytes, spent: Spent | None = None
) -> int:
    """Write one rank's shard: copy, checksum and fsync its files, and leave a part file for `commit`.

    Args:
        target: the checkpoint.
        rank: the rank whose shard is written.
        files: group -> descriptor of the slot's tensor file.
        common: the content of the slot's common.json.
        spent: called after every write; None: nothing is called.

    Returns:
        The size of the shard in bytes.

    Raises:
        FileExistsError: an earlier try has left a file of this shard. `withdraw_shard` deletes such files.
        OSError: a file cannot be written, or the directory is not there any more.
        Damaged: the slot does not hold what its headers say.
    """
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    part: dict[str, Any] = {"files": {}, "chunks": [], "common": _common_of(common, target, rank)}
    for group, fd in files.items():
        chunks, _, size = tensor_file.read_header(fd)
        if not chunks:
            continue
        name = layout.shard_name(prefix=target.prefix, group=group, rank=rank, world_size=target.world_size)
        digests = _copy(fd, directory / name, size=size, spent=spent)
        part["files"][name] = {"bytes": size, checksums.NAME: digests}
        for chunk in chunks:
            entry = {"key": chunk.key, "dtype": chunk.dtype, "whole": chunk.whole, "offset": chunk.offset}
            part["chunks"].append({**entry, "shape": chunk.shape, "file": name, "name": chunk.name})
    atomic.write_durable(directory / PART.format(rank=rank), json.dumps(part).encode())
    return sum(entry["bytes"] for entry in part["files"].values())


def withdraw_shard(target: SaveTarget, rank: int) -> None:
    """Delete what an earlier try has written of a rank's shard, the part file first. Raises OSError."""
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    names = [
        layout.shard_name(prefix=target.prefix, group=group, rank=rank, world_size=target.world_size)
        for group in layout.GROUPS
    ]
    for name in (PART.format(rank=rank), *names):
        (directory / name).unlink(missing_ok=True)


def write_shard_of(target: SaveTarget, rank: int, slot: Path, spent: Spent | None = None) -> int:
    """Write one rank's shard as `write_shard` does, from the directory of a snapshot slot.

    Args:
        target: the checkpoint.
        rank: the rank whose shard is written.
        slot: the slot's directory.
        spent: called after every write; None: nothing is called.

    Returns:
        The size of the shard in bytes.

    Raises:
        OSError: as `write_shard`, or a file of the slot cannot be read.
        Damaged: the slot does not hold what its headers say.
    """
    with ExitStack() as stack:
        files = {}
        for group in layout.GROUPS:
            fd = os.open(layout.slot_file(slot, group), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            files[group] = fd
        common = (slot / layout.COMMON).read_bytes()
        return write_shard(target, rank, files=files, common=common, spent=spent)


def _common_of(common: bytes, target: SaveTarget, rank: int) -> dict[str, Any]:
    """Parse a slot's common.json. Raises Damaged where it is malformed or of another step."""
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
    """Copy `size` bytes to a new file and fsync it; return the digests of its blocks. Raises OSError, Damaged."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        digests = _copy_bytes(source, fd, size=size, spent=spent)
        os.fsync(fd)
        return digests
    except EOFError:
        raise tensor_file.Damaged("a snapshot is cut short") from None
    finally:
        os.close(fd)


def _copy_bytes(source: int, fd: int, size: int, spent: Spent | None) -> list[str]:
    """Copy `size` bytes; return the digests of the blocks. Raises OSError, and EOFError if `source` is shorter."""
    digest = checksums.Running()
    position = 0
    with memoryview(bytearray(min(_PIECE_BYTES, size))) as buffer:
        while position < size:
            count = os.preadv(source, [buffer[: size - position]], position)
            if not count:
                raise EOFError
            digest.update(buffer[:count])
            atomic.write_all(fd, buffer[:count])
            position += count
            if position % _FLUSH_BYTES == 0:
                # The disk begins to write now. Otherwise the fsync at the end would wait for all of the file.
                os.posix_fadvise(fd, position - _FLUSH_BYTES, _FLUSH_BYTES, os.POSIX_FADV_DONTNEED)
            if spent is not None:
                spent(count)
    return digest.finish()


def commit(
    target: SaveTarget,
    permit: Callable[[], None] = lambda: None,
    on_displaced: Callable[[Path], object] = lambda _: None,
) -> tuple[Path, int]:
    """Join the ranks' parts into a checkpoint, and commit the checkpoint with one rename.

    After a failure some part files may be gone, so that a commit cannot be tried again: begin with `prepare`.

    Args:
        target: the checkpoint.
        permit: called before the rename; raises OSError where this process may commit no more.
        on_displaced: called if there is a committed checkpoint of this step already, which an earlier run of the job
            has made. That checkpoint is moved to the quarantine; the argument is its new path.

    Returns:
        The checkpoint's path, and the size of its files in bytes, without metadata.json.

    Raises:
        FileExistsError: another program has put something in the checkpoint's place.
        OSError: a file cannot be written, or `permit` refuses.
        ValueError: a part file is no JSON.
        Damaged: a shard is missing, a rank's state names a tensor that no rank has saved, or two ranks have saved
            different tensors under one key.
    """
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    joined = join(target)
    permit()
    is_tracker_foreign = layout.is_tracker_foreign(target.checkpoint_dir)
    final = _rename(target, directory, on_displaced)
    # The checkpoint is committed. The tracker is a hint: where it cannot be written it is stale until the next commit.
    # The seed is in common.json as well: there a rank sees whether it was given another one.
    with suppress(OSError):
        if not is_tracker_foreign:
            atomic.replace_durable(target.checkpoint_dir / layout.TRACKER, f"{target.step}\n".encode())
        if joined.seed is not None:
            seeds.keep(target.checkpoint_dir, joined.seed)
    return final, joined.bytes


@dataclass(frozen=True)
class Joined:
    """What `join` has made of the ranks' parts."""

    bytes: int
    """size of the checkpoint's files, without metadata.json"""
    seed: int | None
    """the seed that the job has given its ranks; None: none is known"""


def join(target: SaveTarget) -> Joined:
    """Join the ranks' parts into metadata.json and common.json, in the directory where the checkpoint is written.

    Only the part files are read, so that shards may be elsewhere: in a checkpoint store, for instance. After a failure
    some part files may be gone.

    Args:
        target: the checkpoint, which is not committed by this.

    Raises:
        OSError: a file cannot be written.
        ValueError: a part file is no JSON.
        Damaged: a part is missing, a rank's state names a tensor that no rank has saved, or two ranks have saved
            different tensors under one key.
    """
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    part_paths = [directory / PART.format(rank=rank) for rank in range(target.world_size)]
    parts = _read_parts(directory, part_paths)
    tensors = _join_tensors(parts)
    common = json.dumps(_join_common(target, [part["common"] for part in parts]), indent=1).encode()
    atomic.write_durable(directory / layout.COMMON, common)
    files = {name: entry for part in parts for name, entry in part["files"].items()}
    files[layout.COMMON] = {"bytes": len(common), checksums.NAME: checksums.of_bytes(common)}
    entries = {
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
    atomic.write_durable(directory / layout.METADATA, verify.seal(entries))
    atomic.fsync_dir(directory)
    return Joined(sum(entry["bytes"] for entry in files.values()), seeds.of_snapshot(parts[0]["common"]).job)


def _join_tensors(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the entry `tensors` of metadata.json for what all ranks have saved. Raises Damaged as `commit` does."""
    commons = [part["common"] for part in parts]
    outside = [common.get(layout.OUTSIDE, []) for common in commons]
    try:
        tensors = metadata.join_tensors([part["chunks"] for part in parts])
        metadata.check_saved([common["state"] for common in commons], tensors, outside)
    except ValueError as error:
        raise tensor_file.Damaged(str(error)) from error
    return tensors


def _rename(target: SaveTarget, directory: Path, on_displaced: Callable[[Path], object]) -> Path:
    """Commit: rename the directory; return the checkpoint's path. Raises OSError."""
    final = layout.iteration_dir(target.checkpoint_dir, target.step)
    _refuse_foreign(final)
    if final.exists():  # an earlier run of the job reached this step, and was not resumed from
        on_displaced(layout.quarantine(target.checkpoint_dir, final, REPEATED_STEP))
    directory.rename(final)
    atomic.fsync_dir(target.checkpoint_dir)
    return final


def _read_parts(directory: Path, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the content of all parts, by rank. Raises OSError, ValueError for no JSON, Damaged if one is missing."""
    if directory.is_dir() and (missing := [rank for rank, path in enumerate(paths) if not path.exists()]):
        raise tensor_file.Damaged(f"the shard of rank {missing[0]} is not there ({len(missing)} are missing)")
    return [json.loads(path.read_bytes()) for path in paths]


def _join_common(target: SaveTarget, commons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return common.json of the checkpoint, from those of all ranks' snapshots."""
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
    """Delete what a failed save has written. What another program has put there stays. Raises OSError."""
    directory = layout.incomplete_dir(target.checkpoint_dir, target.step)
    if directory.exists():
        remove_ours(directory)
