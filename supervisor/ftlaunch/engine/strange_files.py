"""Finds FIFOs, sockets and devices under the names of files that a job writes or reads.

Whoever opens a FIFO may wait for ever, so that `engine/workspace.py` refuses to start a job that has one in its way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ftlaunch_contract.files.regular_file import kind_of

_RUN_DIR = re.compile(
    r"events\.jsonl|report\.(html|json)|(recovery|limits|seed|plan|failures|operation_log)\.json|lock|token|\.shared|bug\.txt"
    r"|terminal\b.*\.log(\.\d+)?"
)
_LOGS = re.compile(r"warm\b.*\.log")
_ATTEMPT = re.compile(r"attempt_\d+")
_RANK_LOGS = re.compile(r"rank_\d+\.(log|error\.json)|marks\.\d+\.jsonl")
_CHECKPOINTS = re.compile(
    r"latest_checkpointed_iteration\.txt|(skipped|seed|loaded)\.json|\.ftlaunch\.lock|\.shared"
)  # fmt: skip
_FINGERPRINTS = re.compile(r"rank_\d+")


def find_strange_file(run_dir: Path, log_dir: Path, checkpoint_dir: Path) -> tuple[Path, str] | None:
    """Return the first file under a job's names that is no regular file.

    Other names are ignored. A folder that cannot be listed is skipped: the code that works in the folder will report
    the error.

    Returns:
        The path, and what the file is, such as "a FIFO"; None if all files are regular.
    """
    places: list[tuple[Path, re.Pattern[str]]] = [(run_dir, _RUN_DIR), (log_dir, _LOGS), (checkpoint_dir, _CHECKPOINTS)]
    places += [(folder, _RANK_LOGS) for folder in _folders(log_dir)]
    places.append((checkpoint_dir / "fingerprints", _FINGERPRINTS))
    for folder, names in places:
        for entry in _entries(folder):
            if names.fullmatch(entry.name) and (kind := _kind_of_entry(entry)):
                return Path(entry.path), kind
    return None


def _folders(log_dir: Path) -> Iterable[Path]:
    return sorted(Path(entry.path) for entry in _entries(log_dir) if _ATTEMPT.fullmatch(entry.name))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return


def _kind_of_entry(entry: os.DirEntry[str]) -> str:
    """Return what a file is, such as "a FIFO"; "" for a regular file, a link to one, and a file that is gone by now.

    A directory gives "", too: opening a directory as a file fails at once, and is reported there.
    """
    try:
        return "" if entry.is_file() or entry.is_dir() else kind_of(entry.stat().st_mode)
    except OSError:
        return ""
