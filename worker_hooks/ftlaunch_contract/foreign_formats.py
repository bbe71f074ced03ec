"""Recognizes checkpoints that other libraries wrote, by file names alone. Without torch.

Such checkpoints supply weights for a job to begin with. Optimizers, positions and random numbers in them have another
program's shape, and are not loaded.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

HF_NAMES = ("model.safetensors", "pytorch_model.bin")  # followed by `.index.json` if the weights lie in several files
INDEX = ".index.json"
DCP_INDEX = ".metadata"
MINDSPORE_FILE = re.compile(r"(?P<prefix>.+-)?(?P<group>model|opt)-(?P<number>\d{7})-(?P<total>\d{7})\.safetensors?")
"""The name of a checkpoint file of MindSpore Transformers. Ours have the same names; the folder's mark tells them."""
_TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


class Format(Enum):
    """Which library wrote a checkpoint; the value names the format in messages."""

    HF = "a folder as Hugging Face's libraries write it"
    SAFETENSORS = "a safetensors file"
    DCP = "a folder of torch.distributed.checkpoint"
    TORCH = "a file of torch.save"
    MINDSPORE = "a checkpoint of MindSpore Transformers (Checkpoint 2.0)"


def format_of(path: Path) -> Format | None:
    """Return the format of a checkpoint that another library wrote; None where the path holds no such checkpoint."""
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
    """Return the name of the program to which a folder belongs by its file names; empty for files of no known program.

    Call this only for a folder without our mark: checkpoints of ours have the same file names.
    """
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return ""
    return "MindSpore Transformers' Checkpoint 2.0" if any(map(MINDSPORE_FILE.fullmatch, names)) else ""
