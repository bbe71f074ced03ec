"""Save and restore the random numbers of a MindSpore training, and seed the order of its data.

Saved are Python's, NumPy's and MindSpore's global generators and MindSpore's seeds of operators. Random numbers that a
kernel draws by itself cannot be saved (unsaved.py warns of these). ExceptionCheckpoint calls everything here on the
main thread.
"""

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

_UNSEEDED = 5489  # what ds.config.get_seed() returns before anybody seeds: each process then has another order of data


class DataSeed:
    """The seed and the states from which the data pipeline draws its random numbers as Model.train() begins."""

    def __init__(self, saved: Json | None) -> None:
        """Set the seed of the data pipeline, before the pipeline begins.

        Args:
            saved: the `state` of the run that is resumed; None for a new training.
        """
        if saved is not None:
            if saved["generators"] is not None:  # None: no rank of the checkpoint corresponds to this one
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
        """Whether a number was drawn from Python's or NumPy's global generator since the pipeline was seeded."""
        return bool(_global_generators() != self.state["generators"])


def collect() -> Json:
    """Return the present states of all generators, as JSON. Raises TrainingRefused for those that cannot be saved."""
    return {
        "generators": _global_generators(),
        "mindspore": ms.get_rng_state().asnumpy().tolist(),
        "operators": [[*name, seed] for name, seed in _operator_seeds().items()],
    }


def restore(saved: Json, *, own_generators: bool) -> None:
    """Put the generators back.

    Args:
        saved: what `collect` returned; None for a rank that no rank of the checkpoint corresponds to.
        own_generators: whether to put back Python's and NumPy's generators, too.

    Raises:
        TrainingRefused: this version of MindSpore keeps its seeds of operators elsewhere.
    """
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
    """Return MindSpore's private table of the seeds of operators.

    Raises:
        TrainingRefused: this version of MindSpore has no such table in its place.
    """
    found = vars(sys.modules["mindspore.common.seed"]).get("_KERNEL_SEED")
    if not isinstance(found, dict):
        raise TrainingRefused(
            f"cannot keep this training: MindSpore {ms.__version__} has the seeds of its operators elsewhere than"
            " MindSpore 2.10; use a version that is known"
        )
    return found


def _global_generators() -> Json:
    """Return the states of Python's and NumPy's global generators. Raises TrainingRefused unless NumPy's is MT19937."""
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
    """Put Python's and NumPy's global generators back where `_global_generators` found them."""
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = saved["numpy"]
    has_gauss, numpy_gauss = numpy["gauss"]
    np.random.set_state(("MT19937", np.array(numpy["key"], np.uint32), numpy["pos"], has_gauss, numpy_gauss))


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Put Python's and NumPy's generators back afterwards: seeding the data pipeline would seed them, too."""
    before = _global_generators()
    yield
    _put_back(before)
