"""What is done with the numbers that EasyCkpt's calls are given, and what is said of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import operation_log
from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.process import operations


def check_positive(**numbers: int) -> None:
    """Raises AttachError for a number of steps or of checkpoints that is none."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            refuse(f"cannot initialize: {name} is {number!r}: allowed is a whole number from 1 on")


def answer(asked: Mapping[str, int], given: Mapping[str, str], log_file_path: str | None) -> str:
    """One line: what is done with each of the arguments of initialize_easyckpt().

    asked: name of an argument -> its value. given: the settings that the job was given and that hold in its place.
    """
    memory, storage, keep = asked
    done = {
        memory: ("memory_interval", "a snapshot in memory at each multiple"),
        storage: ("storage_interval", "a checkpoint at each multiple"),
        keep: ("keep", "as many checkpoints are kept"),
    }
    parts = []
    for name, (setting, words) in done.items():
        holds = f"not used, as the job was given {given[setting]}, which holds" if setting in given else words
        parts.append(f"{name}={asked[name]}: {holds}")
    if log_file_path is not None:
        parts.append(f"log_file_path={log_file_path!r}: each save and deletion of this run is appended to it{_log()}")
    return f"initialize_easyckpt: {'; '.join(parts)}"


def _log() -> str:
    if protocol.ENV_MEMORY_DIR in os.environ:
        return f"; all else is in the journal, {os.environ.get(protocol.ENV_RUN_DIR, 'in the run dir')}/events.jsonl"
    return ""


def begin_log(log_file_path: str | None, *, first: bool) -> None:
    """Have the saves and deletions of the run appended to a file; None: to none.

    first: this is rank 0. Raises AttachError where the file cannot be written.
    """
    path = None if log_file_path is None else Path(log_file_path).absolute()
    try:
        if first and path is not None:
            operation_log.append(path, [])
        if protocol.ENV_MEMORY_DIR not in os.environ:
            operations.name_file(path)
        elif first:
            operation_log.leave_path(Path(os.environ[protocol.ENV_RUN_DIR]), path)
    except OSError as error:
        refuse(f"cannot initialize: log_file_path={log_file_path!r}: {error.filename or path}: {error.strerror}")
