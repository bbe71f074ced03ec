"""Deletes from a checkpoint directory: old checkpoints, and what interrupted saves have left.

Only files that a save writes are ever deleted; what users put beside or among them stays. The holder of the directory's
lock calls these functions. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ftlaunch_contract.checkpoint import health_mark, layout, metadata, tensor_file, verify
from ftlaunch_contract.files import checksums

PART = "part_{rank:07d}.json"  # a rank's part of metadata.json, until the commit
_OURS = re.compile(
    rf"{re.escape(layout.COMMON)}|{re.escape(layout.METADATA)}|{layout.MARK}|part_\d{{7,}}\.json"
    rf"|.+-({'|'.join(layout.GROUPS)})-\d{{7,}}-\d{{7,}}\.safetensors"
)


class Candidate(NamedTuple):
    """What decides whether a complete checkpoint is kept."""

    step: int
    is_healthy: bool
    ends: tuple[int, ...]
    """the steps at which earlier trainings of the process ended"""


def not_kept(candidates: Iterable[Candidate], keep: int, keep_every: int | None = None, spare: int = -1) -> list[int]:
    """Return the steps that are not to be kept, newest first. Pure.

    Kept are the newest `keep` checkpoints, the newest one that is marked healthy, those that the arguments name, and
    the ends of earlier trainings that a kept one names.

    Args:
        candidates: all complete checkpoints, newest first.
        keep: how many checkpoints to keep, at least one.
        keep_every: steps; a checkpoint at a multiple is kept. 0 or None: no such steps.
        spare: the step just committed, which is kept even if storage has newer ones that nobody resumed from.
    """
    leaving: list[int] = []
    kept = 0
    has_healthy = False
    training_ends: set[int] = set()
    for step, is_healthy, ends in candidates:
        is_newest_healthy = is_healthy and not has_healthy
        has_healthy = has_healthy or is_healthy
        is_multiple = bool(keep_every and step % keep_every == 0)
        stays = step == spare or step in training_ends or is_multiple or is_newest_healthy
        if kept >= max(keep, 1) and not stays:
            leaving.append(step)
        else:
            kept += 1
            training_ends.update(ends)
    return leaving


def doomed(
    checkpoint_dir: Path, keep: int, keep_every: int | None = None, spare: int = -1
) -> Iterator[tuple[int, Path]]:
    """Yield the committed checkpoints that are not to be kept, newest first, by the rule of `not_kept`.

    An incomplete checkpoint is neither counted nor deleted: the next resume refuses it.

    Args:
        checkpoint_dir: the directory.
        keep: as `not_kept` takes it.
        keep_every: as `not_kept` takes it.
        spare: as `not_kept` takes it.
    """
    paths = dict(layout.list_iterations(checkpoint_dir))
    for step in not_kept(_candidates(paths), keep=keep, keep_every=keep_every, spare=spare):
        yield step, paths[step]


def _candidates(paths: Mapping[int, Path]) -> list[Candidate]:
    """Return what decides about each complete checkpoint, in the order of `paths`. Raises OSError."""
    return [
        Candidate(step, health_mark.is_normal(found), metadata.trainings(found).ends)
        for step, path in paths.items()
        if (found := _examined(path)) is not None
    ]


def _examined(path: Path) -> dict[str, Any] | None:
    """Return the metadata of a complete checkpoint; None for any other."""
    try:
        return verify.examine(path)
    except (tensor_file.Damaged, OSError):
        return None


def retire(
    checkpoint_dir: Path, keep: int, keep_every: int | None = None, spare: int = -1
) -> Iterator[tuple[int, str | None]]:
    """Delete the `doomed` checkpoints.

    A checkpoint is renamed before its files are deleted, so that a crash leaves it whole or not there.

    Yields:
        The step, and None or a sentence on what stayed.

    Raises:
        OSError: a file cannot be deleted.
    """
    for step, directory in doomed(checkpoint_dir, keep=keep, keep_every=keep_every, spare=spare):
        yield step, _delete(checkpoint_dir, step, directory)


def _delete(checkpoint_dir: Path, step: int, directory: Path) -> str | None:
    """Delete a checkpoint. Return None, or a sentence on what stayed. Raises OSError."""
    aside = layout.incomplete_dir(checkpoint_dir, step)
    if aside.exists() and (strangers := remove_ours(aside)):
        return strangers
    directory.rename(aside)
    return remove_ours(aside)


def _digest_of(path: Path) -> str:
    """Return the checksum by which a store knows the checkpoint in a directory. Raises OSError."""
    return checksums.of_blocks(checksums.of_bytes((path / layout.METADATA).read_bytes()))


def not_fitting(
    candidates: Iterable[Candidate], sizes: Mapping[int, int], max_size: int, needed: set[int]
) -> list[int]:
    """Return the steps for which there is no room, newest first. Pure.

    Whatever their size, these stay: the newest checkpoint, the newest one that is marked healthy, those that the caller
    needs, and the ends of earlier trainings that one of these names. Of the others stay the newest that fit besides.

    Args:
        candidates: all complete checkpoints, newest first.
        sizes: bytes of each of them.
        max_size: bytes that all of them may have together.
        needed: steps that stay.
    """
    found = list(candidates)
    ends = {step: set(ends) & sizes.keys() for step, _, ends in found}
    healthy = [step for step, is_healthy, _ in found if is_healthy]
    first = {*(step for step, _, _ in found[:1]), *healthy[:1], *(needed & sizes.keys())}
    kept = first.union(*(ends[step] for step in first))
    for step, _, _ in found:
        more = {step, *ends[step]} | kept
        if sum(sizes[number] for number in more) > max_size:
            break
        kept = more
    return [step for step, _, _ in found if step not in kept]


def make_room(
    checkpoint_dir: Path, max_size: int, stored: Mapping[int, str], spare: int
) -> Iterator[tuple[int, str | None]]:
    """Delete checkpoints that a store has too, by the rule of `not_fitting`, until the others fit.

    Args:
        checkpoint_dir: the directory.
        max_size: bytes that the checkpoints in the directory may have together.
        stored: the steps that a store has -> checksum (`checksums.of_blocks`) of metadata.json there, which has the
            checksums of all other files. What the store lacks, or has with other content, is never deleted.
        spare: the step just committed, which is kept.

    Yields:
        The step, and None or a sentence on what stayed.

    Raises:
        OSError: a file cannot be read or deleted.
    """
    paths = {step: path for step, path in layout.list_iterations(checkpoint_dir) if _examined(path) is not None}
    sizes = {step: verify.size_of(path) for step, path in paths.items()}
    if sum(sizes.values()) <= max_size:
        return
    candidates = _candidates(paths)
    needed = {spare, *(step for step, path in paths.items() if stored.get(step) != _digest_of(path))}
    for step in not_fitting(candidates, sizes, max_size=max_size, needed=needed):
        yield step, _delete(checkpoint_dir, step, paths[step])


def clear_unfinished(checkpoint_dir: Path) -> list[tuple[int, str | None]]:
    """Delete what interrupted saves and deletions have left.

    Only the holder of the directory's lock may call this: nobody else saves there then.

    Returns:
        The step, and None or a sentence on what stayed, for each such directory.
    """
    with suppress(OSError):
        (checkpoint_dir / f"{layout.TRACKER}.tmp").unlink(missing_ok=True)
    found = []
    for step, directory in layout.list_incomplete(checkpoint_dir):
        try:
            found.append((step, remove_ours(directory)))
        except OSError as error:
            found.append((step, f"cannot remove {directory}: {error.strerror}"))
    return found


def remove_ours(directory: Path) -> str | None:
    """Delete the files of an incomplete checkpoint and its directory. Raises OSError.

    Returns:
        None, or a sentence if something in the directory is not ours, so that the directory stays.
    """
    for entry in list(directory.iterdir()):
        if _OURS.fullmatch(entry.name) and not entry.is_dir():
            entry.unlink()
    if strangers := sorted(entry.name for entry in directory.iterdir()):
        return f"{directory} stays: {', '.join(strangers)} in it is not ours"
    directory.rmdir()
    return None
