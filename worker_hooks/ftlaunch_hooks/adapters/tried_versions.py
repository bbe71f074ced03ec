"""Tell the user when a framework is newer than the versions with which the adapters were tried."""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata

from ftlaunch_hooks.process.say import say

# distribution: (the name for people, major and minor number of the newest version with which `make newest` has run)
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
_MODULES = {"megatron-core": "megatron", "pytorch-lightning": "pytorch_lightning"}  # others: the distribution's name

_checked = set[str]()  # distributions that say_if_newer() has dealt with


def say_if_newer() -> None:
    """Report on rank 0, once for each imported framework, that its version is newer than the newest one tried.

    Only the major and the minor number count.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    for package, (name, newest) in TRIED.items():
        if package in _checked or _MODULES.get(package, package) not in sys.modules:
            continue
        _checked.add(package)
        if (sentence := untried(name, newest, _installed(package))) is not None:
            say(sentence)


def untried(name: str, newest: tuple[int, int], installed: str) -> str | None:
    """Return the sentence about an installed version, or None if that version is not newer than the newest one tried.

    Args:
        name: of the framework, for people.
        newest: major and minor number of the newest version that was tried.
        installed: the installed version; empty if it is not known.
    """
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    if numbers is None or (int(numbers[1]), int(numbers[2])) <= newest:
        return None
    return (
        f"not tried with {name} {installed}: the newest one that this adapter was tried with is"
        f" {newest[0]}.{newest[1]}; `ftctl rehearse` shows whether your script goes on exactly with it"
    )


def _installed(package: str) -> str:
    """Return the version of a distribution, or an empty text without that distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
