"""What is said of arguments of EasyCkpt's that the supervisor decides: it has begun before the script gives them."""

from __future__ import annotations

import os

from ftlaunch_contract import protocol
from ftlaunch_hooks.adapters.refusal import refuse


def check_positive(**numbers: int) -> None:
    """Raises AttachError for a number of steps or of checkpoints that is none."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            refuse(f"cannot initialize: {name} is {number!r}: allowed is a whole number from 1 on")


def answer(save_mem_interval: int, save_storage_interval: int, max_ckpt_num: int, log_file_path: str | None) -> str:
    """One line: what is done with each of the arguments of initialize_easyckpt()."""
    memory = os.environ.get(protocol.ENV_MEMORY_INTERVAL, protocol.DEFAULT_MEMORY_INTERVAL)
    parts = [
        f"save_mem_interval={save_mem_interval} is --memory-interval {save_mem_interval}, and this job has {memory}",
        f"save_storage_interval={save_storage_interval}: a checkpoint is asked for every {save_storage_interval}"
        " iterations, beside those of --storage-interval",
        f"max_ckpt_num={max_ckpt_num} is --keep {max_ckpt_num}{_kept()}",
    ]
    if log_file_path is not None:
        parts.append(f"log_file_path={log_file_path!r} is not written: {_log()}")
    return f"initialize_easyckpt: {'; '.join(parts)}"


def _supervised() -> bool:
    return protocol.ENV_MEMORY_DIR in os.environ


def _kept() -> str:
    if _supervised():
        return f", which the supervisor was or was not given ({protocol.DEFAULT_KEEP} are kept without it)"
    return f", and this job keeps {os.environ.get(protocol.ENV_KEEP, protocol.DEFAULT_KEEP)}"


def _log() -> str:
    if _supervised():
        return f"the journal is {os.environ.get(protocol.ENV_RUN_DIR, 'in the run dir')}/events.jsonl"
    return "a journal is the supervisor's"
