"""Deletes from a checkpoint directory: old checkpoints, and what interrupted saves have left.

Standard library only. Only what a save writes is ever deleted; what users put beside or into it stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import health_mark, layout, metadata, tensor_file, verify

PART = "part_{rank:07d}.json"  # a rank's share of metadata.json, until the commit
_OURS = re.compile(
    rf"{re.escape(layout.COMMON)}|{re.escape(layout.METADATA)}|{layout.MARK}|part_\d{{7,}}\.json"
    rf"|.+-({'|'.join(layout.GROUPS)})-\d{{7,}}-\d{{7,}}\.safetensors"
)


def doomed(
    checkpoint_dir: Path, keep: int, keep_every: int | None = None, spare: int = -1
) -> Iterator[tuple[int, Path]]:
    """The committed checkpoints that are not to be kept, newest first.

    Kept are the newest `keep` (one at least) that are complete, every one whose step is a multiple of
    `keep_every`, `spare` (the one just committed, should storage have newer ones that nobody resumed from), the newest
    that is marked healthy, and the ends of earlier trainings that one of those names. An incomplete one is neither
    counted nor deleted: the next resume refuses it.
    """
    kept, healthy, ends = 0, False, set[int]()
    for step, path in layout.list_iterations(checkpoint_dir):
        found = _examined(path)
        newest_healthy = found is not None and not healthy and health_mark.is_normal(found)
        healthy = healthy or newest_healthy
        stays = step == spare or step in ends or bool(keep_every and step % keep_every == 0) or newest_healthy
        if found is not None and kept >= max(keep, 1) and not stays:
            yield step, path
        elif found is not None:
            kept += 1
            ends.update(metadata.trainings(found).ends)


def _examined(path: Path) -> dict[str, Any] | None:
    """The metadata of a complete checkpoint."""
    try:
        return verify.examine(path)
    except (tensor_file.Damaged, OSError):
        return None


def retire(
    checkpoint_dir: Path, keep: int, keep_every: int | None = None, spare: int = -1
) -> Iterator[tuple[int, str | None]]:
    """Delete the `doomed`; yields (step, None, or a sentence on what stayed). Raises OSError.

    A checkpoint is renamed before its files are deleted, so that a crash leaves it whole or not there.
    """
    for step, directory in doomed(checkpoint_dir, keep, keep_every, spare):
        aside = layout.incomplete_dir(checkpoint_dir, step)
        if aside.exists() and (strangers := remove_ours(aside)):
            yield step, strangers
            continue
        directory.rename(aside)
        yield step, remove_ours(aside)


def clear_unfinished(checkpoint_dir: Path) -> list[tuple[int, str | None]]:
    """Delete what interrupted saves and deletions have left: (step, None, or a sentence on what stayed) of each.

    To be called by the holder of the directory's lock: nobody else saves there.
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
    """Delete an incomplete checkpoint's files and its directory; returns a sentence when something in it is not ours.

    Raises OSError.
    """
    for entry in list(directory.iterdir()):
        if _OURS.fullmatch(entry.name) and not entry.is_dir():
            entry.unlink()
    if strangers := sorted(entry.name for entry in directory.iterdir()):
        return f"{directory} stays: {', '.join(strangers)} in it is not ours"
    directory.rmdir()
    return None
