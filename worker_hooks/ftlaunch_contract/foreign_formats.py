"""Checkpoints that other libraries wrote: which format a path is in, as far as file names say. Without torch.

They hold weights for a job to begin with. Optimizers, positions and random numbers in them are of another program's
shape, and are not taken.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

HF_NAMES = ("model.safetensors", "pytorch_model.bin")  # with `.index.json` behind: the weights lie in several files
INDEX = ".index.json"
DCP_INDEX = ".metadata"
MINDSPORE_FILE = re.compile(r"(?P<prefix>.+-)?(?P<group>model|opt)-(?P<number>\d{7})-(?P<total>\d{7})\.safetensors?")
"""A file in a checkpoint of MindSpore Transformers, or of ours, whose layout follows it: ours bear a mark."""
_TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


class Format(Enum):
    """Who wrote it, as it is called in messages."""

    HF = "a folder as Hugging Face's libraries write it"
    SAFETENSORS = "a safetensors file"
    DCP = "a folder of torch.distributed.checkpoint"
    TORCH = "a file of torch.save"
    MINDSPORE = "a checkpoint of MindSpore Transformers (Checkpoint 2.0)"


def format_of(path: Path) -> Format | None:
    """The format of a checkpoint that another library wrote; None where there is none."""
    if path.is_dir():
        if (path / DCP_INDEX).is_file():
            return Format.DCP
        if any((path / name).is_file() or (path / f"{name}{INDEX}").is_file() for name in HF_NAMES):
            return Format.HF
        return Format.MINDSPORE if program_of(path) else None
    if not path.is_file():
        return None
    if path.suffix == ".safetensors":
        return Format.SAFETENSORS
    import zipfile  # noqa: PLC0415 - few jobs begin with a checkpoint of another library; the supervisor stays small

    return Format.TORCH if path.suffix in _TORCH_SUFFIXES or zipfile.is_zipfile(path) else None


def program_of(folder: Path) -> str:
    """The program that makes the job's checkpoints, whose names ours have, and whose checkpoint a folder is.

    Empty where the names of its files are of no such program. Only for what has no mark of ours.
    """
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return ""
    return "MindSpore Transformers' Checkpoint 2.0" if any(map(MINDSPORE_FILE.fullmatch, names)) else ""
