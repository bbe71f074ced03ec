"""Checks whether a checkpoint can be trusted: its metadata, its files, their checksums. Without torch."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import health_mark, layout, tensor_file
from ftlaunch_contract.checkpoint.layout import COMMON, METADATA
from ftlaunch_contract.checkpoint.metadata import check_common, check_metadata
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged
from ftlaunch_contract.files import checksums, untrusted_json
from ftlaunch_contract.progress import Advance, ignore

_LONGEST_JSON = 256 << 20  # over a million chunks


def seal(metadata: Mapping[str, Any]) -> bytes:
    """metadata.json's bytes, with a digest over itself."""
    body = dict(metadata)
    body["digest"] = _metadata_digest(body)
    return json.dumps(body, indent=1).encode()


def _metadata_digest(metadata: Mapping[str, Any]) -> str:
    body = {key: value for key, value in metadata.items() if key != "digest"}
    return checksums.of_whole(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def read_metadata(directory: Path) -> dict[str, Any]:
    """metadata.json of a checkpoint, its own digest and its form checked. Raises Damaged or OSError."""
    data = _read_json(directory, METADATA)
    try:
        metadata = untrusted_json.parse(data)
        sealed = isinstance(metadata, dict) and metadata.get("digest") == _metadata_digest(metadata)
        if not sealed:
            raise Damaged("metadata.json does not match its own checksum")
        if metadata.get("version") != layout.VERSION:
            raise Damaged(f"its layout is version {metadata.get('version')!r:.40}, this program reads {layout.VERSION}")
        check_metadata(metadata, tensor_file.DTYPE_BYTES, checksums.BLOCK)
    except ValueError as error:
        raise Damaged(f"metadata.json cannot be read ({error})") from error
    except RecursionError:
        raise Damaged("metadata.json cannot be read (it is nested too deeply)") from None
    if COMMON not in metadata["files"]:
        raise Damaged(f"metadata.json says nothing of {COMMON}")
    if layout.step_of(directory) not in (None, metadata["step"]):
        raise Damaged(f"it is the checkpoint of step {metadata['step']} under another name")
    return dict(metadata)


def examine(directory: Path) -> dict[str, Any]:
    """A checkpoint's metadata, if every file is there with its size; the content of the files is not read.

    Raises Damaged or OSError.
    """
    metadata = read_metadata(directory)
    _check_sizes(directory, metadata["files"])
    return metadata


def is_complete(directory: Path) -> bool:
    """Whether `examine` finds nothing wrong."""
    try:
        examine(directory)
    except (Damaged, OSError):
        return False
    return True


def verify(directory: Path, threads: int | None = None, advance: Advance = ignore) -> dict[str, Any]:
    """Check every file of a checkpoint by size, checksum and form; returns its metadata.

    threads: that hash at the same time; one for each processor if not given. advance: told of bytes that are read.
    Raises Damaged with the first thing found wrong, OSError when storage does not answer (which says nothing about
    the checkpoint).
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - the saver verifies; the supervisor stays small

    metadata = examine(directory)  # cheap things first
    files: Mapping[str, Mapping[str, Any]] = metadata["files"]
    work = [
        (directory, name, block, digest)
        for name, entry in files.items()
        for block, digest in zip(checksums.blocks(entry["bytes"]), entry[checksums.NAME], strict=True)
    ]
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        problems = pool.map(_check_block, *zip(*work, strict=True))
        for problem, (_, _, (begin, end), _) in zip(problems, work, strict=True):
            if problem:
                pool.shutdown(wait=False, cancel_futures=True)
                raise Damaged(problem)
            advance(end - begin)
    _check_headers(directory, metadata)
    try:
        check_common(untrusted_json.parse(_read_json(directory, COMMON)), metadata["step"])
    except ValueError as error:
        raise Damaged(f"{COMMON} cannot be used: {error}") from error
    return metadata


def _check_sizes(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    for name, entry in files.items():
        if (size := _size(directory, name)) != entry["bytes"]:
            raise Damaged(f"{name} has {size} bytes, not {entry['bytes']}")


def _size(directory: Path, name: str) -> int:
    """Size of a file in the directory itself. Raises Damaged, OSError."""
    try:
        info = (directory / name).lstat()
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None
    if not stat.S_ISREG(info.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "something else"
        raise Damaged(f"{name} is not a file, but {what}")
    return info.st_size


def _read_json(directory: Path, name: str) -> bytes:
    """Raises Damaged, OSError."""
    if (size := _size(directory, name)) > _LONGEST_JSON:
        raise Damaged(f"{name} has {size} bytes, more than any that was written by this program")
    return (directory / name).read_bytes()


def _check_block(directory: Path, name: str, block: tuple[int, int], digest: str) -> str | None:
    """What is wrong with a block of a file. Raises OSError."""
    fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return None if checksums.of_block(fd, *block) == digest else f"{name} does not match its checksum"
    except EOFError:
        return f"{name} is cut short"
    finally:
        os.close(fd)


def _check_headers(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Raises Damaged where a tensor file does not hold what metadata.json says, OSError.

    A file may also hold chunks that metadata.json names in another file: each node saves all that is replicated.
    """
    said: dict[str, list[Chunk]] = {name: [] for name in metadata["files"] if name != COMMON}
    for key, tensor in metadata["tensors"].items():
        for part in tensor["chunks"]:
            place = tuple(part["shape"]), key, tuple(part["offset"]), tuple(tensor["shape"])
            said.setdefault(part["file"], []).append(Chunk(part["name"], tensor["dtype"], *place))
    everywhere = {_place(chunk) for chunks in said.values() for chunk in chunks}
    for name, chunks in said.items():
        fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found, _, size = tensor_file.read_header(fd)
            more = Counter(found)
            more.subtract(chunks)
            known = all(count >= 0 and (not count or _place(chunk) in everywhere) for chunk, count in more.items())
            if size != os.fstat(fd).st_size or not known:
                raise Damaged(f"{name} does not hold what {METADATA} says")
        finally:
            os.close(fd)


def _place(chunk: Chunk) -> tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return chunk.key, chunk.dtype, chunk.offset, chunk.shape, chunk.whole


def size_of(directory: Path) -> int:
    """Bytes of a checkpoint's files, as its metadata says; 0 where that cannot be read: `verify` says why."""
    try:
        return sum(entry["bytes"] for entry in read_metadata(directory)["files"].values())
    except (Damaged, OSError):
        return 0


@dataclass(frozen=True)
class Refusal:
    """A checkpoint that was refused: its step, why, and where it is now."""

    step: int
    why: str
    to: str


def newest_verified(
    checkpoint_dir: Path, healthy_before: int | None = None, advance: Advance = ignore
) -> tuple[int, list[Refusal]]:
    """The step of the newest checkpoint that verifies (-1: none), and what was refused on the way.

    A damaged checkpoint goes to quarantine with a note why. A checkpoint that cannot be moved, or not be read at this
    moment, stays and is passed over. healthy_before: only checkpoints that are older than this step and marked
    healthy come into question; of the others only the mark is read. advance: told of bytes that are read.
    """
    refusals = []
    for step, directory in layout.list_iterations(checkpoint_dir):
        if healthy_before is not None and step >= healthy_before:
            continue
        try:
            if healthy_before is not None and not health_mark.is_normal(read_metadata(directory)):
                continue
            verify(directory, advance=advance)
        except Damaged as damage:
            try:
                to = str(layout.quarantine(checkpoint_dir, directory, str(damage)))
            except OSError as error:
                to = f"still in {directory} (it could not be moved: {error.strerror})"
            refusals.append(Refusal(step, str(damage), to))
            continue
        except OSError as error:  # an error of storage says nothing about the checkpoint: it stays where it is
            refusals.append(Refusal(step, f"it cannot be read ({error.strerror})", f"where it was, {directory}"))
            continue
        return step, refusals
    return -1, refusals
