"""Fingerprints everything that a step depends on besides the parameters: random numbers, learning rates, batches.

StepProof calls these functions in the thread that trains. They change nothing, and wait for no device.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch.optim import Optimizer

from ftlaunch_hooks.devices import device_port

_GROUPS = 64
"""largest number of an optimizer's parameter groups whose learning rates are read"""


def fingerprint_random_numbers(*, has_all_generators: bool) -> int:
    """Return a hash, of 64 bits, of the states of torch's global generators, including the accelerator's.

    The state of a GPU's generator lies in this process's memory, so that the function waits for no device.

    Args:
        has_all_generators: whether Python's generator counts, and NumPy's once NumPy is imported. Reading these two
            costs ten times as much as reading torch's.
    """
    fingerprint = xxhash.xxh3_64(torch.get_rng_state().numpy().data)
    accelerator = device_port.random_states()
    for state in () if accelerator is None else accelerator.states:
        fingerprint.update(state.numpy().data)
    if has_all_generators:
        _update_with_other_generators(fingerprint)
    return fingerprint.intdigest()


def _update_with_other_generators(fingerprint: xxhash.xxh3_64) -> None:
    _, words, gauss = random.getstate()
    # A tuple of ints has the same hash in every process: only strings and bytes are hashed with a seed.
    fingerprint.update(struct.pack("<qd", hash(words), gauss if gauss is not None else 0.0))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        inner = state["state"]
        if state["bit_generator"] == "MT19937":
            fingerprint.update(inner["key"])
            fingerprint.update(struct.pack("<qqd", inner["pos"], state["has_gauss"], state["gauss"]))
        else:
            fingerprint.update(repr(state).encode())


def fingerprint_learning_rates(optimizers: Sequence[Optimizer]) -> int:
    """Return a hash, of 64 bits, of the learning rates of the optimizers' groups. A rate on a device counts as 0."""
    rates = [group.get("lr") for optimizer in optimizers for group in optimizer.param_groups[:_GROUPS]]
    numbers = [_number(rate) for rate in rates]
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(numbers)}d", *numbers))


def _number(rate: Any) -> float:
    if isinstance(rate, Tensor):
        return float(rate) if rate.device.type == "cpu" else 0.0
    return float(rate) if isinstance(rate, (int, float)) else 0.0


def fingerprint_batch(sample: Tensor, before: int) -> int | None:
    """Return a hash, of 64 bits, of a sample of a batch and of the batches before in the same step.

    Args:
        sample: a few values of the batch.
        before: the hash of the batches before in the same step; 0 for the first.

    Returns:
        None for a sample on a device, because reading the sample would wait.
    """
    if sample.device.type != "cpu":
        return None
    return xxhash.xxh3_64_intdigest(sample.numpy().data, seed=before)
