"""Check the arguments of EasyCkpt's calls, tell the user what is done about them, and begin EasyCkpt's log file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import operation_log
from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.process import operations


def check_positive(**numbers: int) -> None:
    """Raise AttachError unless all arguments, given by name, are whole numbers of 1 or more."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            refuse(f"cannot initialize: {name} is {number!r}: allowed is a whole number from 1 on")


def answer(asked: Mapping[str, int], given: Mapping[str, str], log_file_path: str | None) -> str:
    """Return a line that says what is done about each argument of initialize_easyckpt().

    Args:
        asked: the values of the three numbers by the names of the arguments, in the order of the call.
        given: the options that the user gave to the job and that hold against these arguments, by setting.
        log_file_path: the argument of this name.
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
        journal = _where_the_journal_is()
        parts.append(f"log_file_path={log_file_path!r}: each save and deletion of this run is appended to it{journal}")
    return f"initialize_easyckpt: {'; '.join(parts)}"


def _where_the_journal_is() -> str:
    """Return the end of a sentence that names the supervisor's journal; empty without a supervisor."""
    if protocol.ENV_MEMORY_DIR in os.environ:
        return f"; all else is in the journal, {os.environ.get(protocol.ENV_RUN_DIR, 'in the run dir')}/events.jsonl"
    return ""


def begin_log(log_file_path: str | None, *, first: bool) -> None:
    """Have whoever saves append the saves and deletions of this run to a file.

    Args:
        log_file_path: the file, or None for no log.
        first: whether this is rank 0.

    Raises:
        AttachError: the file cannot be written.
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
