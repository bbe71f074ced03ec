"""The newest version of each framework that the adapters were tried with, and a word where a newer one is there."""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata

from ftlaunch_hooks.process.say import say

# distribution: the name for people, and major and minor number of the newest version that `make newest` has run with
TRIED = {
    "accelerate": ("Accelerate", (1, 15)),
    "datasets": ("datasets", (5, 2)),
    "deepspeed": ("DeepSpeed", (0, 19)),
    "lightning": ("Lightning", (2, 6)),
    "megatron-core": ("Megatron-core", (0, 16)),
    "peft": ("PEFT", (0, 21)),
    "pytorch-lightning": ("PyTorch Lightning", (2, 6)),
    "torchtitan": ("torchtitan", (0, 3)),
    "transformers": ("Transformers", (5, 24)),
    "trl": ("TRL", (1, 16)),
}
_MODULES = {"megatron-core": "megatron", "pytorch-lightning": "pytorch_lightning"}  # others are called as they are

_told = set[str]()


def say_if_newer() -> None:
    """Say once of each framework that the script has imported that nobody has tried its version, where it is newer.

    Newer means another major or minor number. The line is said by rank 0.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    for package, (name, newest) in TRIED.items():
        if package in _told or _MODULES.get(package, package) not in sys.modules:
            continue
        _told.add(package)
        if (sentence := untried(name, newest, _installed(package))) is not None:
            say(sentence)


def untried(name: str, newest: tuple[int, int], installed: str) -> str | None:
    """Return what is said of an installed version that is newer than the newest one tried; None where it is not."""
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    if numbers is None or (int(numbers[1]), int(numbers[2])) <= newest:
        return None
    return (
        f"not tried with {name} {installed}: the newest one that this adapter was tried with is"
        f" {newest[0]}.{newest[1]}; `ftctl rehearse` shows whether your script goes on exactly with it"
    )


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
