"""Deletes from a checkpoint directory: old checkpoints, and what interrupted saves have left.

Only files that a save writes are ever deleted; what users put beside or among them stays. The holder of the directory's
lock calls these functions. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ftlaunch_contract.checkpoint import health_mark, layout, metadata, tensor_file, verify

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
    candidates = [
        Candidate(step, health_mark.is_normal(found), metadata.trainings(found).ends)
        for step, path in paths.items()
        if (found := _examined(path)) is not None
    ]
    for step in not_kept(candidates, keep=keep, keep_every=keep_every, spare=spare):
        yield step, paths[step]


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
        aside = layout.incomplete_dir(checkpoint_dir, step)
        if aside.exists() and (strangers := remove_ours(aside)):
            yield step, strangers
            continue
        directory.rename(aside)
        yield step, remove_ours(aside)


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
