"""Reads tensors of MindSpore Transformers' checkpoints; mindformers_folder.py says where their parts belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ftlaunch_contract.checkpoint import mindformers_folder
from ftlaunch_hooks.storage.foreign.hf_folder import Pieces, pieces_of_safetensors


def pieces_of_mindspore(folder: Path) -> Pieces:
    """Return the tensors in the files of weights, mapped. Raises OSError, Damaged."""
    parts = mindformers_folder.parts_of(folder)
    files = {name: pieces_of_safetensors(folder / name) for placed in parts.values() for name, _ in placed}
    return {
        key: [replace(piece, chunk=chunk) for name, chunk in placed for piece in files[name][key]]
        for key, placed in parts.items()
    }
