"""Where snapshots and checkpoints lie, and how they are named, listed and moved. Standard library only.

A snapshot slot and a committed checkpoint hold the same two kinds of safetensors files per rank: `model`
and `opt` (optimizer, random numbers and every other tensor). For every tensor that is a part of a larger one, the
`__metadata__` of the file's header says where the part belongs. The layout on storage follows MindSpore Transformers'.
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
OUTSIDE = "outside"  # in a slot's common.json: keys in its state of tensors that only other ranks have
ENDS = "training_ends"  # in common.json and metadata.json: the steps at which earlier trainings of the process ended
WORDS = "training_words"  # in the same files: what the script calls those trainings, and the current one
METADATA = "metadata.json"
TRACKER = "latest_checkpointed_iteration.txt"
QUARANTINE = "quarantine"
SKIPPED = "skipped.json"  # read and written by skipped_samples.py
SEED = "seed.json"  # read and written by seeds.py
INCOMPLETE = ".incomplete"
MARK = "written_by_ftlaunch"
"""The name of an empty file, the first in a checkpoint's directory. MindSpore Transformers gives its folders and files
the names that ours have, so names do not tell whose a checkpoint is; nor does metadata.json once it is damaged.
"""

_ITERATION = re.compile(r"iteration_(\d{7,})")
_INCOMPLETE = re.compile(r"iteration_(\d{7,})\.incomplete")
_SHARD = re.compile(r".*-(\d{7,})-\d{7,}\.safetensors", re.DOTALL)
_MEGATRON = re.compile(r"iter_\d{7,}")
_HEAD_BYTES = 256  # enough to recognize a tracker file or our metadata.json
_OUR_TRACKER = re.compile(rb"\d+\n")
_OUR_METADATA = re.compile(rb'\{\s*"version": \d+,\s*"step": \d+,\s*"world_size": \d+,')


# --- snapshot slots ---------------------------------------------------------------------------------------


def slot_dir(memory_dir: Path, rank: int, slot: int) -> Path:
    """Return the directory of a snapshot slot, which holds model.safetensors, opt.safetensors and common.json."""
    return memory_dir / f"slot_{rank:05d}_{slot}"


def storage_slots(checkpoint_dir: Path, name: str) -> Path:
    """Return the directory of the slots on storage, for the job `name` whose snapshots do not fit into memory."""
    return checkpoint_dir / f".staged-{name}"


def fingerprints_path(checkpoint_dir: Path, rank: int) -> Path:
    """Return where a rank leaves a copy of its fingerprint ring for a run that resumes from storage."""
    return checkpoint_dir / "fingerprints" / f"rank_{rank:05d}"


def link_slot(link: Path, target: Path) -> None:
    """Make the directory `target` of a slot on storage, and a link to it among the slots in memory. Raises OSError."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink() != target:
        link.unlink()
    if not link.is_symlink():
        link.symlink_to(target)


def remove_slot(directory: Path) -> None:
    """Delete a slot. For a slot on storage, delete the link, the files and their directory. Raises OSError."""
    if not directory.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
        return
    target = directory.readlink()
    shutil.rmtree(target, ignore_errors=True)  # the link goes also when storage does not answer
    with contextlib.suppress(OSError):
        target.parent.rmdir()  # succeeds only for the last slot in it
    directory.unlink()


def remove_slots(memory_dir: Path) -> None:
    """Delete all slots of all ranks in a memory directory. Raises OSError."""
    for directory in memory_dir.glob("slot_*"):
        remove_slot(directory)


def slot_file(directory: Path, group: str) -> Path:
    """Return the path of the tensor file of `group` in a slot."""
    return directory / f"{group}.safetensors"


# --- checkpoints ------------------------------------------------------------------------------------------


def iteration_dir(checkpoint_dir: Path, step: int) -> Path:
    """Return the directory of the committed checkpoint of a step."""
    return checkpoint_dir / f"iteration_{step:07d}"


def incomplete_dir(checkpoint_dir: Path, step: int) -> Path:
    """Return the directory in which the checkpoint of a step is written before the commit."""
    return checkpoint_dir / f"iteration_{step:07d}{INCOMPLETE}"


def make_incomplete(checkpoint_dir: Path, step: int) -> Path:
    """Make the directory in which the checkpoint of a step is written, with our mark in it. Raises OSError."""
    directory = incomplete_dir(checkpoint_dir, step)
    directory.mkdir()
    (directory / MARK).touch(exist_ok=False)
    return directory


def shard_name(prefix: str, group: str, rank: int, world_size: int) -> str:
    """Return the file name of a rank's shard."""
    return f"{prefix}-{group}-{rank:07d}-{world_size:07d}.safetensors"


def is_shard_of(name: str, rank: int, world_size: int) -> bool:
    """Whether a file name of a checkpoint is that of a rank's shard, with any prefix."""
    suffixes = [shard_name(prefix="", group=group, rank=rank, world_size=world_size) for group in GROUPS]
    return name.endswith(tuple(suffixes))


def rank_of_shard(name: str) -> int:
    """Return the rank whose shard a file of a checkpoint is; 0 for a file of another name."""
    found = _SHARD.fullmatch(name)
    return 0 if found is None else int(found[1])


def list_iterations(checkpoint_dir: Path) -> list[tuple[int, Path]]:
    """List our committed checkpoints as (step, path), newest first; empty where the directory is missing.

    Nothing is verified. A checkpoint that cannot be read at the moment is listed; its reader finds out.
    """
    return [entry for entry in _list(checkpoint_dir, _ITERATION) if _may_be_ours(entry[1])]


def list_foreign(checkpoint_dir: Path) -> list[tuple[int, Path]]:
    """List as (step, path), newest first, what others have put where our checkpoints would lie: any kind of file."""
    try:
        paths = list(checkpoint_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(step, path) for path in paths if (step := step_of(path)) is not None and is_foreign(path)]
    return sorted(found, reverse=True)


def is_ours(directory: Path) -> bool:
    """Whether this program has made a checkpoint's directory, whole or damaged.

    The mark tells. A copy may lack the mark; then the beginning of metadata.json tells, as other programs' begins
    otherwise.

    Raises:
        OSError: neither can be read.
    """
    try:
        (directory / MARK).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return _OUR_METADATA.match(_head(directory / METADATA)) is not None
    return True


def is_foreign(path: Path) -> bool:
    """Whether something that this program has not made lies at a checkpoint's path."""
    if path.is_symlink():
        return True  # this program makes no links there
    return path.exists() and not _may_be_ours(path)


def _may_be_ours(directory: Path) -> bool:
    try:
        return is_ours(directory)
    except OSError:  # storage that does not answer says nothing about whose a checkpoint is
        return True


def _head(path: Path) -> bytes:
    """Return the beginning of a regular file; empty where there is no regular file. Raises OSError."""
    try:
        with open_regular(path) as file:
            return file.read(_HEAD_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR, errno.ELOOP):  # no regular file
            return b""
        raise


def step_of(directory: Path) -> int | None:
    """Return the step in the name of a committed checkpoint's directory; None for any other name."""
    named = _ITERATION.fullmatch(directory.name)
    return int(named[1]) if named else None


def committed_at(checkpoint_dir: Path, step: int) -> float | None:
    """Return the wall time in seconds at which a step was committed; None where the step has no checkpoint."""
    try:
        return (iteration_dir(checkpoint_dir, step) / METADATA).stat().st_mtime
    except FileNotFoundError:
        return None


def read_tracker(checkpoint_dir: Path) -> int | None:
    """Return the step that the tracker file names, which is only a hint; None where the file is missing or torn."""
    try:
        return int(read_regular(checkpoint_dir / TRACKER)[:32])
    except (OSError, ValueError):
        return None


def is_tracker_foreign(checkpoint_dir: Path) -> bool:
    """Whether another program keeps the tracker file, whose name Megatron-LM and MindSpore Transformers also use.

    Our tracker ends with a newline, theirs with the number. Beside checkpoints of ours, a tracker that was torn or
    written by hand counts as ours.
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
    """List as (step, path), newest first, the directories that interrupted saves and deletions have left."""
    return _list(checkpoint_dir, _INCOMPLETE)


def _list(checkpoint_dir: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        entries = [entry for entry in os.scandir(checkpoint_dir) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    found = [(int(match[1]), Path(entry.path)) for entry in entries if (match := pattern.fullmatch(entry.name))]
    return sorted(found, reverse=True)


def quarantine(checkpoint_dir: Path, directory: Path, why: str) -> Path:
    """Move a refused checkpoint to the quarantine, with a note that says why. Nothing is deleted.

    Returns:
        Where the checkpoint is now.

    Raises:
        OSError: the note cannot be written, or the checkpoint cannot be moved.
    """
    shelter = checkpoint_dir / QUARANTINE
    shelter.mkdir(exist_ok=True)
    target = _first_free(shelter / directory.name)
    atomic.write_durable(shelter / f"{target.name}.why.txt", f"{why}\n".encode())
    directory.rename(target)
    atomic.fsync_dir(shelter)
    atomic.fsync_dir(checkpoint_dir)
    return target


def _first_free(path: Path) -> Path:
    """Return `path`, or the first of `path.1`, `path.2`, ... that does not exist, if `path` does."""
    free = path
    number = 1
    while free.exists():
        free = path.with_name(f"{path.name}.{number}")
        number += 1
    return free


def refused_before(checkpoint_dir: Path) -> bool:
    """Whether checkpoints were refused. If none is left, the user must then ask for a start from nothing."""
    shelter = checkpoint_dir / QUARANTINE
    return shelter.is_dir() and any(path.is_dir() for path in shelter.iterdir())


def supersede(checkpoint_dir: Path, above: int = -1) -> Path | None:
    """Put our committed checkpoints of steps above `above` aside.

    With the default, for a fresh start, all of them are put aside, and so are the quarantine, the list of samples to
    skip and the seed. If a checkpoint cannot be read, it may be somebody else's: then nothing is moved.

    Returns:
        The folder in which they are now; None where there was nothing to move.

    Raises:
        OSError: a checkpoint cannot be read or moved.
    """
    found = [path for step, path in list_iterations(checkpoint_dir) if step > above and is_ours(path)]
    if above < 0:
        others = (checkpoint_dir / QUARANTINE, checkpoint_dir / SKIPPED, checkpoint_dir / SEED)
        found += [path for path in others if path.exists()]
    if not found:
        return None
    name = f"superseded-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    shelter = _first_free(checkpoint_dir / name)  # the name is taken where the clock was set back, say
    has_foreign_tracker = is_tracker_foreign(checkpoint_dir)
    shelter.mkdir()
    for directory in found:
        directory.rename(shelter / directory.name)
    if above >= 0 and not has_foreign_tracker:
        atomic.replace_durable(checkpoint_dir / TRACKER, f"{above}\n".encode())
    elif not has_foreign_tracker:
        (checkpoint_dir / TRACKER).unlink(missing_ok=True)
    atomic.fsync_dir(checkpoint_dir)
    return shelter
