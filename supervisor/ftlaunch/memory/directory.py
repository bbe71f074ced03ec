"""The directory of a job in /dev/shm: its path, the note about the job in it, its removal."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.protocol import memory_root

_PLACES = "places.json"


def memory_dir(job_id: str) -> Path:
    """Where a job keeps its pages and snapshots."""
    return memory_root(os.getuid()) / job_id


def write_places(directory: Path, run_dir: Path, checkpoint_dir: Path) -> None:
    """Note in a memory directory which job it belongs to, for `ftctl`. Raises OSError."""
    places = {"run_dir": str(run_dir), "checkpoint_dir": str(checkpoint_dir)}
    path = directory / _PLACES
    path.touch(mode=0o600)
    path.write_text(json.dumps(places))


def read_places(directory: Path) -> tuple[Path, Path] | None:
    """Run dir and checkpoint dir of the job a memory directory belongs to; None where it is not known."""
    try:
        places = json.loads((directory / _PLACES).read_text())
        return Path(places["run_dir"]), Path(places["checkpoint_dir"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_memory(directory: Path) -> None:
    """Delete a job's memory directory, and the user's when it was the last."""
    layout.remove_slots(directory)
    shutil.rmtree(directory)
    with contextlib.suppress(OSError):  # other jobs are in it
        directory.parent.rmdir()


def count_pages(directory: Path) -> int:
    """How many ranks the pages in a memory directory are of."""
    return len(list(directory.glob("page_*")))


def forget_snapshots(directory: Path) -> None:
    """Delete pages and snapshot slots."""
    layout.remove_slots(directory)
    for page in directory.glob("page_*"):
        page.unlink()
