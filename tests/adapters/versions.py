"""Tests that a framework of a year ago cannot pass, as the undisturbed script fails with it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest


def lacks_before(package: str, known: tuple[int, int], what: str) -> pytest.MarkDecorator:
    """Skip where the installed package is older than the version that is known to have it, or is not installed."""
    try:
        major, minor, *_ = version(package).split(".")
    except PackageNotFoundError:
        return pytest.mark.skipif(True, reason=f"{package} is not installed (make frameworks)")
    there = (int(major), int(minor)) >= known
    return pytest.mark.skipif(not there, reason=f"{package} {major}.{minor} {what}")


FSDP_ON_CPU = lacks_before("accelerate", (1, 15), "shards on accelerators only")
LORA_IN_ZERO = lacks_before("transformers", (5, 0), "gives DeepSpeed's scheduler another number of groups with LoRA")
RANKS_ON_CPU = lacks_before("transformers", (5, 0), "does not load a checkpoint of several ranks on CPUs")
PACKED_STREAMS = lacks_before("trl", (1, 0), "gives the ranks packed batches of several sizes")
EMA = lacks_before("lightning", (2, 6), "has no EMAWeightAveraging")
DOUBTS = lacks_before("megatron-core", (0, 16), "ends a job where one rank alone doubts a result that is not fatal")
