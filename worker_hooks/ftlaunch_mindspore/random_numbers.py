"""Random numbers that a training of MindSpore's draws: what is saved of them, and what seeds the order of the data."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np

from ftlaunch_mindspore.refusal import TrainingRefused

Json = Any

_UNSEEDED = 5489  # what ds.config.get_seed() says before anybody has seeded: then each process has another order


class DataSeed:
    """What the data pipeline draws its random numbers from, at the beginning of train()."""

    def __init__(self, saved: Json | None) -> None:
        """Set it, before the pipeline begins. saved: what `state` was, where training resumes; None: a new training."""
        if saved is not None:
            if saved["generators"] is not None:  # this rank is new
                _put_back(saved["generators"])
            seed = int(saved["seed"])
        else:
            seed = ms.dataset.config.get_seed()
            seed = secrets.randbelow(1 << 31) if seed == _UNSEEDED else seed
        if seed != ms.dataset.config.get_seed():
            with _generators_kept():
                ms.dataset.config.set_seed(seed)
        self.state: Json = {"seed": seed, "generators": _global_generators()}

    @property
    def drawn_since(self) -> bool:
        """Whether anybody has drawn from Python's or NumPy's generator since."""
        return bool(_global_generators() != self.state["generators"])


def collect() -> Json:
    """Where all generators are now."""
    return {
        "generators": _global_generators(),
        "mindspore": ms.get_rng_state().asnumpy().tolist(),
        "operators": [[*name, seed] for name, seed in _operator_seeds().items()],
    }


def restore(saved: Json, *, own_generators: bool) -> None:
    """Put them back. saved: None for a rank that is new. own_generators: Python's and NumPy's, too."""
    if saved is None:
        return
    if own_generators:
        _put_back(saved["generators"])
    ms.set_rng_state(ms.Tensor(np.array(saved["mindspore"], np.uint8)))
    if ms.get_context("mode") == ms.PYNATIVE_MODE:  # a graph has its seeds from when it was compiled
        seeds = _operator_seeds()
        seeds.clear()
        seeds.update({(kernel, number): seed for kernel, number, seed in saved["operators"]})


def _operator_seeds() -> MutableMapping[Any, int]:
    """MindSpore's own table of the seeds of operators. Raises TrainingRefused where it has moved."""
    found = vars(sys.modules["mindspore.common.seed"]).get("_KERNEL_SEED")
    if not isinstance(found, dict):
        raise TrainingRefused(
            f"cannot keep this training: MindSpore {ms.__version__} has the seeds of its operators elsewhere than"
            " MindSpore 2.10; use a version that is known"
        )
    return found


def _global_generators() -> Json:
    version, words, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    if numpy["bit_generator"] != "MT19937":
        raise TrainingRefused(
            f"cannot keep this training: numpy.random draws from {numpy['bit_generator']}; only MT19937, its own"
            " choice, can be saved"
        )
    key = numpy["state"]["key"].tolist()
    return {
        "python": [version, list(words), gauss],
        "numpy": {"key": key, "pos": numpy["state"]["pos"], "gauss": [numpy["has_gauss"], numpy["gauss"]]},
    }


def _put_back(saved: Json) -> None:
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    one = saved["numpy"]
    np.random.set_state(("MT19937", np.array(one["key"], np.uint32), one["pos"], *one["gauss"]))


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Seeding the data pipeline seeds Python's and NumPy's generators as well; they stay as they are."""
    before = _global_generators()
    yield
    _put_back(before)
