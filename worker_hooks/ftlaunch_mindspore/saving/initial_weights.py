"""Read the weights of a checkpoint of MindSpore Transformers, with which a new training begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ftlaunch_contract.checkpoint import mindformers_folder
from ftlaunch_mindspore.saving import arrays
from ftlaunch_mindspore.saving.arrays import Array


def read(folder: Path) -> dict[str, Array]:
    """Join the parts of each parameter.

    Args:
        folder: the files of one checkpoint.

    Returns:
        Whole parameters by name, those of bfloat16 as float32.

    Raises:
        Damaged: a file or the folder is not what MindSpore Transformers writes.
        OSError: a file cannot be read.
    """
    parts = mindformers_folder.parts_of(folder)
    files = {name: arrays.read(folder / name) for name in {name for placed in parts.values() for name, _ in placed}}
    found = {}
    for key, placed in parts.items():
        first, whole = placed[0]
        joined = np.empty(whole.whole, files[first][key].dtype)
        for name, chunk in placed:
            place = tuple(slice(begin, begin + extent) for begin, extent in zip(chunk.offset, chunk.shape, strict=True))
            joined[place] = files[name][key]
        found[key] = joined
    return found
