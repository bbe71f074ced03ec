"""Checks whether a checkpoint can be trusted: its metadata, its files, their checksums. Without torch.

The saver verifies what it has written; a job verifies what it resumes from.
"""

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

_MAX_JSON_BYTES = 256 << 20  # room for more than a million chunks
_LEAST_THREADS = 8  # of verify(): the kernel reads few KiB ahead in each, and a fast disk wants many requests at a time


def seal(metadata: Mapping[str, Any]) -> bytes:
    """Return the bytes of metadata.json, with a digest over the rest of it."""
    body = dict(metadata)
    body["digest"] = _metadata_digest(body)
    return json.dumps(body, indent=1).encode()


def _metadata_digest(metadata: Mapping[str, Any]) -> str:
    body = {key: value for key, value in metadata.items() if key != "digest"}
    return checksums.of_whole(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def read_metadata(directory: Path) -> dict[str, Any]:
    """Return metadata.json of a checkpoint, after checking its own digest and its form.

    Raises:
        Damaged: the file is missing, malformed, of another version, or of another step than the folder's name.
        OSError: the file cannot be read.
    """
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
    """Return a checkpoint's metadata if every file is there with its size. The content of the files is not read.

    Raises:
        Damaged: something is wrong with the metadata or a file is missing or has another size.
        OSError: storage does not answer.
    """
    metadata = read_metadata(directory)
    _check_sizes(directory, metadata["files"])
    return metadata


def is_complete(directory: Path) -> bool:
    """Whether `examine` finds nothing wrong with the checkpoint."""
    try:
        examine(directory)
    except (Damaged, OSError):
        return False
    return True


def verify(directory: Path, advance: Advance = ignore) -> dict[str, Any]:
    """Check every file of a checkpoint by size, checksum and form; return the checkpoint's metadata.

    Args:
        directory: the checkpoint.
        advance: told the number of bytes that were checked.

    Raises:
        Damaged: the first thing that was found wrong.
        OSError: storage does not answer, which says nothing about the checkpoint.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - the saver verifies; the supervisor stays small

    metadata = examine(directory)  # cheap things first
    files: Mapping[str, Mapping[str, Any]] = metadata["files"]
    work = [
        (name, block, digest)
        for name, entry in files.items()
        for block, digest in zip(checksums.blocks(entry["bytes"]), entry[checksums.NAME], strict=True)
    ]

    def problem_of(item: tuple[str, tuple[int, int], str]) -> str | None:
        name, block, digest = item
        return _check_block(directory, name, block=block, digest=digest)

    with ThreadPoolExecutor(max(_LEAST_THREADS, len(os.sched_getaffinity(0)))) as pool:
        problems = pool.map(problem_of, work)
        for problem, (_, (begin, end), _) in zip(problems, work, strict=True):
            if problem:
                pool.shutdown(wait=False, cancel_futures=True)
                raise Damaged(problem)
            advance(end - begin)
    _check_form(directory, metadata)
    return metadata


def verify_hashed(directory: Path, digests: Mapping[str, list[str]]) -> dict[str, Any]:
    """Check a checkpoint whose files were hashed as they were written. Return the checkpoint's metadata.

    Args:
        directory: the checkpoint.
        digests: the checksums of each file's blocks, by the name of the file.

    Raises:
        Damaged: the first thing that was found wrong.
        OSError: storage does not answer, which says nothing about the checkpoint.
    """
    metadata = examine(directory)
    for name, entry in metadata["files"].items():
        if digests.get(name) != entry[checksums.NAME]:
            raise Damaged(f"{name} does not match its checksum")
    _check_form(directory, metadata)
    return metadata


def _check_form(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Check that files of the right content are those of a checkpoint. Raises Damaged, OSError."""
    _check_headers(directory, metadata)
    try:
        check_common(untrusted_json.parse(_read_json(directory, COMMON)), metadata["step"])
    except ValueError as error:
        raise Damaged(f"{COMMON} cannot be used: {error}") from error


def _check_sizes(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    for name, entry in files.items():
        if (size := _size(directory, name)) != entry["bytes"]:
            raise Damaged(f"{name} has {size} bytes, not {entry['bytes']}")


def _size(directory: Path, name: str) -> int:
    """Return the size in bytes of a file directly in the directory. Raises Damaged, OSError."""
    try:
        info = (directory / name).lstat()
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None
    if not stat.S_ISREG(info.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "something else"
        raise Damaged(f"{name} is not a file, but {what}")
    return info.st_size


def _read_json(directory: Path, name: str) -> bytes:
    """Return the bytes of a JSON file of bounded length. Raises Damaged, OSError."""
    if (size := _size(directory, name)) > _MAX_JSON_BYTES:
        raise Damaged(f"{name} has {size} bytes, more than any that was written by this program")
    return (directory / name).read_bytes()


def _check_block(directory: Path, name: str, block: tuple[int, int], digest: str) -> str | None:
    """Return what is wrong with a block of a file, as a sentence; None where nothing is. Raises OSError."""
    fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        begin, end = block
        return None if checksums.of_block(fd, begin, end) == digest else f"{name} does not match its checksum"
    except EOFError:
        return f"{name} is cut short"
    finally:
        os.close(fd)


def _check_headers(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Check that every tensor file holds what metadata.json says. Raises Damaged, OSError.

    A file may also hold chunks that metadata.json lists in another file, because each node saves all that is
    replicated.
    """
    listed: dict[str, list[Chunk]] = {name: [] for name in metadata["files"] if name != COMMON}
    for key, tensor in metadata["tensors"].items():
        for part in tensor["chunks"]:
            chunk = Chunk(
                name=part["name"],
                dtype=tensor["dtype"],
                shape=tuple(part["shape"]),
                key=key,
                offset=tuple(part["offset"]),
                whole=tuple(tensor["shape"]),
            )
            listed.setdefault(part["file"], []).append(chunk)
    all_places = {_place(chunk) for chunks in listed.values() for chunk in chunks}
    for name, chunks in listed.items():
        fd = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found, _, size = tensor_file.read_header(fd)
            surplus = Counter(found)
            surplus.subtract(chunks)
            is_complete_file = all(count >= 0 for count in surplus.values())
            is_known = all(_place(chunk) in all_places for chunk, count in surplus.items() if count)
            if size != os.fstat(fd).st_size or not is_complete_file or not is_known:
                raise Damaged(f"{name} does not hold what {METADATA} says")
        finally:
            os.close(fd)


def _place(chunk: Chunk) -> tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return everything about a chunk but its name in a file."""
    return chunk.key, chunk.dtype, chunk.offset, chunk.shape, chunk.whole


def size_of(directory: Path) -> int:
    """Return the bytes of a checkpoint's files, as its metadata says; 0 where the metadata cannot be read."""
    try:
        return sum(entry["bytes"] for entry in read_metadata(directory)["files"].values())
    except (Damaged, OSError):
        return 0


@dataclass(frozen=True)
class Refusal:
    """A checkpoint that was refused."""

    step: int
    why: str  # a part of a sentence
    to: str  # where the checkpoint is now, as a part of a sentence


def newest_verified(
    checkpoint_dir: Path, healthy_before: int | None = None, advance: Advance = ignore
) -> tuple[int, list[Refusal]]:
    """Find the newest checkpoint that verifies.

    A damaged checkpoint goes to quarantine with a note why. A checkpoint that cannot be moved, or cannot be read at the
    moment, stays and is passed over.

    Args:
        checkpoint_dir: the directory; the caller holds its lock.
        healthy_before: if given, only checkpoints that are older than this step and marked healthy are candidates; of
            the others only the mark is read.
        advance: told the number of bytes that were checked.

    Returns:
        The step (-1: no checkpoint verifies), and the checkpoints that were refused.
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
