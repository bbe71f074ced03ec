"""Find the checkpoint that a Trainer has written by itself and from which all ranks can resume.

KeptTraining calls this module before a training begins. `find` is a collective; the other functions only read the
file system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ftlaunch_contract.pages.page import NONE

_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
_TENSORS = (".bin", ".pt", ".pth", ".safetensors")
_RANDOM_NUMBERS = "rng_state*.pth"
"""files that the Trainer writes after those of optimizer and scheduler, unless save_only_model is set"""


@dataclass(frozen=True)
class TrainerCheckpoint:
    """A checkpoint that the Trainer has written."""

    path: str
    step: int
    """the Trainer's global_step"""
    last: int
    """the step with which the training that wrote the checkpoint was to end"""
    is_whole: bool
    """whether the checkpoint holds more than the model"""


@dataclass(frozen=True)
class AgreedCheckpoint:
    """The newest checkpoint that rank 0 can use, as all ranks know it."""

    checkpoint: TrainerCheckpoint
    blind_rank: int | None
    """a rank that does not see the checkpoint"""


def read(directory: Path) -> TrainerCheckpoint | None:
    """Return the checkpoint in `directory`, or None if the checkpoint is incomplete.

    The Trainer writes its state last. When a machine is lost, a file system may keep the names of files whose bytes
    were never written; therefore a checkpoint with an empty file of tensors is incomplete.
    """
    try:
        state = json.loads((directory / TRAINER_STATE_NAME).read_bytes())
        step = int(state["global_step"])
        last = int(state["max_steps"])
        is_empty = any(path.stat().st_size == 0 for path in directory.iterdir() if path.suffix in _TENSORS)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if is_empty:
        return None
    is_whole = any(directory.glob(_RANDOM_NUMBERS))
    return TrainerCheckpoint(path=str(directory), step=step, last=last, is_whole=is_whole)


def newest(output_dir: str, *, whole: bool) -> TrainerCheckpoint | None:
    """Return the newest complete checkpoint in `output_dir`. With `whole`, one of the model alone does not count."""
    for _, directory in _directories(Path(output_dir)):
        checkpoint = read(directory)
        if checkpoint is not None and (checkpoint.is_whole or not whole):
            return checkpoint
    return None


def incomplete(output_dir: str, behind: int) -> list[str]:
    """Return the names of incomplete checkpoints of later steps than `behind`."""
    found = [directory for step, directory in _directories(Path(output_dir)) if step > behind]
    return [directory.name for directory in found if read(directory) is None]


def find(asked: str | bool, args: Any, *, whole: bool) -> AgreedCheckpoint | None:
    """Find the checkpoint that `resume_from_checkpoint` asks for. This is a collective: every rank calls it.

    Args:
        asked: the path of a checkpoint, or True for the newest one in the Trainer's output_dir.
        args: the TrainingArguments.
        whole: whether a checkpoint of the model alone does not count.

    Returns:
        The checkpoint, with the same step on all ranks, or None where rank 0 finds none.
    """
    mine = newest(args.output_dir, whole=whole) if asked is True else read(Path(str(asked)))
    if mine is not None and whole and not mine.is_whole:
        mine = None
    step = _gather(NONE if mine is None else mine.step, args.device)[0]
    if step == NONE:
        return None
    if asked is True and (mine is None or mine.step != step):
        mine = read(Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}"))
    steps = _gather(NONE if mine is None else mine.step, args.device)
    blind = next((rank for rank, seen in enumerate(steps) if seen != step), None)
    unseen = TrainerCheckpoint(path=f"{PREFIX_CHECKPOINT_DIR}-{step}", step=step, last=step, is_whole=False)
    return AgreedCheckpoint(mine or unseen, blind)


def _directories(output_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield the steps and directories of checkpoints, the newest first."""
    try:
        found = [(int(match[1]), path) for path in output_dir.iterdir() if (match := _NAME.fullmatch(path.name))]
    except FileNotFoundError:
        return
    yield from ((step, path) for step, path in sorted(found, reverse=True) if path.is_dir())


def _gather(number: int, device: torch.device) -> list[int]:
    """Return the numbers of all ranks, by rank. This is a collective."""
    if not distributed.is_initialized():
        return [number]
    own = torch.tensor([number], dtype=torch.int64, device=device)
    parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, own)
    return [int(part) for part in parts]
