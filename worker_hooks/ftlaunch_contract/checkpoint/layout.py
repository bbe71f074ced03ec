"""Where snapshots and checkpoints lie and how their files look. Standard library only.

A snapshot slot and a committed checkpoint hold the same two kinds of safetensors files per rank: `model`
and `opt` (optimizer, RNG and every other tensor). Their header's `__metadata__` says of every tensor that
is a part of a larger one where it belongs. The on-storage layout follows MindSpore Transformers'.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from pathlib import Path

from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular, read_regular

VERSION = 2
GROUPS = ("model", "opt")
COMMON = "common.json"
OUTSIDE = "outside"  # in a slot's common.json: keys that its state names, of tensors that only other ranks have
ENDS = "training_ends"  # in common.json and metadata.json: the steps at which earlier trainings of the process ended
WORDS = "training_words"  # beside it: what the script calls each of them, and this one
METADATA = "metadata.json"
TRACKER = "latest_checkpointed_iteration.txt"
QUARANTINE = "quarantine"
SKIPPED = "skipped.json"  # see skipped_samples.py
SEED = "seed.json"  # see seeds.py
INCOMPLETE = ".incomplete"
MARK = "written_by_ftlaunch"
"""An empty file, the first in a checkpoint's directory. MindSpore Transformers gives its folders and files the names
that ours have, so names tell nobody whose a checkpoint is; nor does metadata.json once it is damaged."""

_ITERATION = re.compile(r"iteration_(\d{7,})")
_INCOMPLETE = re.compile(r"iteration_(\d{7,})\.incomplete")
_SHARD = re.compile(r".*-(\d{7,})-\d{7,}\.safetensors", re.DOTALL)
_MEGATRON = re.compile(r"iter_\d{7,}")
_HEAD = 256  # bytes
_OUR_TRACKER = re.compile(rb"\d+\n")
_OUR_METADATA = re.compile(rb'\{\s*"version": \d+,\s*"step": \d+,\s*"world_size": \d+,')


# --- snapshot slots ---------------------------------------------------------------------------------------


def slot_dir(memory_dir: Path, rank: int, slot: int) -> Path:
    """The directory of a snapshot slot; it holds model.safetensors, opt.safetensors and common.json."""
    return memory_dir / f"slot_{rank:05d}_{slot}"


def storage_slots(checkpoint_dir: Path, name: str) -> Path:
    """Where the snapshot slot on storage lies, for a job whose snapshots do not fit into memory. name: of the job."""
    return checkpoint_dir / f".staged-{name}"


def fingerprints_path(checkpoint_dir: Path, rank: int) -> Path:
    """Where a rank leaves a copy of its ring of fingerprints, for a run that resumes from storage."""
    return checkpoint_dir / "fingerprints" / f"rank_{rank:05d}"


def link_slot(link: Path, target: Path) -> None:
    """Make the directory of a slot on storage, and the link to it where slots lie. Raises OSError."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink() != target:
        link.unlink()
    if not link.is_symlink():
        link.symlink_to(target)


def remove_slot(directory: Path) -> None:
    """Delete a slot. Of a slot on storage the link, the files and their directory are deleted. Raises OSError."""
    if not directory.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
        return
    target = directory.readlink()
    shutil.rmtree(target, ignore_errors=True)  # the link goes also when storage does not answer
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


def make_incomplete(checkpoint_dir: Path, step: int) -> Path:
    """Make the directory in which the checkpoint of a step is written, with our mark in it. Raises OSError."""
    directory = incomplete_dir(checkpoint_dir, step)
    directory.mkdir()
    (directory / MARK).touch(exist_ok=False)
    return directory


def shard_name(prefix: str, group: str, rank: int, world_size: int) -> str:
    """File name of a rank's shard."""
    return f"{prefix}-{group}-{rank:07d}-{world_size:07d}.safetensors"


def is_shard_of(name: str, rank: int, world_size: int) -> bool:
    """Whether a file of a checkpoint is a rank's shard, whatever its prefix."""
    return any(name.endswith(shard_name("", group, rank, world_size)) for group in GROUPS)


def rank_of_shard(name: str) -> int:
    """Return the rank whose shard a file of a checkpoint is; 0 for a file of another name."""
    found = _SHARD.fullmatch(name)
    return 0 if found is None else int(found[1])


def list_iterations(checkpoint_dir: Path) -> list[tuple[int, Path]]:
    """Our committed checkpoints, newest first; empty where the directory is missing. Nothing is verified.

    One that cannot be read at this moment is listed: whoever reads it says so.
    """
    return [entry for entry in _list(checkpoint_dir, _ITERATION) if _may_be_ours(entry[1])]


def list_foreign(checkpoint_dir: Path) -> list[tuple[int, Path]]:
    """What others have put where our checkpoints would lie, newest first: folders, files or links."""
    try:
        paths = list(checkpoint_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(step, path) for path in paths if (step := step_of(path)) is not None and is_foreign(path)]
    return sorted(found, reverse=True)


def is_ours(directory: Path) -> bool:
    """Whether this program has made a checkpoint's directory, be the checkpoint whole or damaged.

    The mark says so, or metadata.json, of which other programs' begins otherwise: a copy may lack the mark. Raises
    OSError where that cannot be read.
    """
    try:
        (directory / MARK).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return _OUR_METADATA.match(_head(directory / METADATA)) is not None
    return True


def is_foreign(path: Path) -> bool:
    """Whether something lies at a checkpoint's path that this program has not made."""
    if path.is_symlink():
        return True  # we make none
    return path.exists() and not _may_be_ours(path)


def _may_be_ours(directory: Path) -> bool:
    try:
        return is_ours(directory)
    except OSError:  # storage that does not answer says nothing about whose a checkpoint is
        return True


def _head(path: Path) -> bytes:
    """The beginning of a regular file; nothing where there is none. Raises OSError."""
    try:
        with open_regular(path) as file:
            return file.read(_HEAD)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR, errno.ELOOP):  # no regular file
            return b""
        raise


def step_of(directory: Path) -> int | None:
    """The step of the committed checkpoint that a directory's name stands for; None for any other name."""
    named = _ITERATION.fullmatch(directory.name)
    return int(named[1]) if named else None


def committed_at(checkpoint_dir: Path, step: int) -> float | None:
    """Wall time in seconds at which a step was committed; None where there is no checkpoint of it."""
    try:
        return (iteration_dir(checkpoint_dir, step) / METADATA).stat().st_mtime
    except FileNotFoundError:
        return None


def read_tracker(checkpoint_dir: Path) -> int | None:
    """The step that the tracker file names; None when it is missing or torn. The tracker is only a hint."""
    try:
        return int(read_regular(checkpoint_dir / TRACKER)[:32])
    except (OSError, ValueError):
        return None


def is_tracker_foreign(checkpoint_dir: Path) -> bool:
    """Whether another program keeps the tracker file, which Megatron-LM and MindSpore Transformers call as we do.

    Ours ends with a newline, theirs with the number. Beside checkpoints of ours one that was torn, or written by hand,
    counts as ours.
    """
    tracker = checkpoint_dir / TRACKER
    if not os.path.lexists(tracker):
        return False
    step = read_tracker(checkpoint_dir)
    if is_megatron(checkpoint_dir) or (step is not None and is_foreign(iteration_dir(checkpoint_dir, step))):
        return True
    return not _OUR_TRACKER.fullmatch(_head(tracker)) and not list_iterations(checkpoint_dir)


def is_megatron(checkpoint_dir: Path) -> bool:
    """Whether checkpoints of Megatron-LM lie in a directory."""
    try:
        return any(_MEGATRON.fullmatch(path.name) for path in checkpoint_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def list_incomplete(checkpoint_dir: Path) -> list[tuple[int, Path]]:
    """The directories that interrupted saves and deletions have left, newest first."""
    return _list(checkpoint_dir, _INCOMPLETE)


def _list(checkpoint_dir: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        entries = [e for e in os.scandir(checkpoint_dir) if e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    found = [(int(m[1]), Path(e.path)) for e in entries if (m := pattern.fullmatch(e.name))]
    return sorted(found, reverse=True)


def quarantine(checkpoint_dir: Path, directory: Path, why: str) -> Path:
    """Move a refused checkpoint to the quarantine, with a note that says why. Nothing is deleted. Raises OSError."""
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
    """Put our committed checkpoints of steps above `above` aside; returns where they are now. Raises OSError.

    For a fresh start all of them; then the quarantine, the list of samples to skip and the seed are put aside, too.
    One that cannot be read may be somebody else's, and is not moved: then nothing is.
    """
    found = [path for step, path in list_iterations(checkpoint_dir) if step > above and is_ours(path)]
    if above < 0:
        also = (checkpoint_dir / QUARANTINE, checkpoint_dir / SKIPPED, checkpoint_dir / SEED)
        found += [path for path in also if path.exists()]
    if not found:
        return None
    name = f"superseded-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    shelter, number = checkpoint_dir / name, 1
    while shelter.exists():  # the clock was set back, say
        shelter, number = checkpoint_dir / f"{name}.{number}", number + 1
    theirs = is_tracker_foreign(checkpoint_dir)
    shelter.mkdir()
    for directory in found:
        directory.rename(shelter / directory.name)
    if above >= 0 and not theirs:
        atomic.replace_durable(checkpoint_dir / TRACKER, f"{above}\n".encode())
    elif not theirs:
        (checkpoint_dir / TRACKER).unlink(missing_ok=True)
    atomic.fsync_dir(checkpoint_dir)
    return shelter
