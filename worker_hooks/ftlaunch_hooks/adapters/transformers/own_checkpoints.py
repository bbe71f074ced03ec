"""The checkpoints that a Trainer writes by itself: which of them a training can go on from, on all ranks."""

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
"""files that the Trainer writes behind those of optimizer and scheduler, and not with save_only_model"""


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
    """Return the checkpoint in `directory`; None where it is incomplete.

    The Trainer writes its state last. Of a machine that was lost file systems may have kept names, and no bytes.
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
    return TrainerCheckpoint(str(directory), step, last, is_whole=any(directory.glob(_RANDOM_NUMBERS)))


def newest(output_dir: str, *, whole: bool) -> TrainerCheckpoint | None:
    """Return the newest checkpoint in `output_dir` that is complete. whole: those with the model alone do not count."""
    for _, directory in _directories(Path(output_dir)):
        checkpoint = read(directory)
        if checkpoint is not None and (checkpoint.is_whole or not whole):
            return checkpoint
    return None


def incomplete(output_dir: str, behind: int) -> list[str]:
    """Return the names of checkpoints of later steps than `behind` that were not written to their end."""
    found = [directory for step, directory in _directories(Path(output_dir)) if step > behind]
    return [directory.name for directory in found if read(directory) is None]


def find(asked: str | bool, args: Any, *, whole: bool) -> AgreedCheckpoint | None:
    """Look for what `resume_from_checkpoint` asks for. Every rank calls it, and all ranks return the same.

    Args:
        asked: the path of a checkpoint, or True for the newest in the Trainer's output_dir.
        args: the TrainingArguments.
        whole: see `newest`.
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
    unseen = TrainerCheckpoint(f"{PREFIX_CHECKPOINT_DIR}-{step}", step, step, is_whole=False)
    return AgreedCheckpoint(mine or unseen, blind)


def _directories(output_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield the folders of checkpoints with their steps, the newest first."""
    try:
        found = [(int(match[1]), path) for path in output_dir.iterdir() if (match := _NAME.fullmatch(path.name))]
    except FileNotFoundError:
        return
    yield from ((step, path) for step, path in sorted(found, reverse=True) if path.is_dir())


def _gather(number: int, device: torch.device) -> list[int]:
    """Return the numbers of all ranks, in their order."""
    if not distributed.is_initialized():
        return [number]
    own = torch.tensor([number], dtype=torch.int64, device=device)
    parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, own)
    return [int(part) for part in parts]
