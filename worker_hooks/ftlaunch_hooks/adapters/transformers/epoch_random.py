"""The random numbers with which an epoch began: by them its order of the data is drawn, and its workers are seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch

_HOLDERS = ("sampler", "batch_sampler", "synchronized_generator")


class EpochRandom:
    """Python's, NumPy's and torch's generators on the CPU, and those of the loader's samplers."""

    def __init__(self, loader: Any) -> None:
        """loader: that trains."""
        self._own = list(_generators(loader, 4))
        self._epoch = -1
        self._state: dict[str, Any] = {}

    def begin(self, epoch: int) -> None:
        """An epoch begins: note its random numbers; where they were saved of this very epoch, put them back."""
        if self._state and self._epoch == epoch:
            self._put_back()
        else:
            self._epoch, self._state = epoch, self._read()

    def state(self) -> dict[str, Any]:
        """What was noted."""
        return {"epoch": self._epoch, **self._state}

    def load(self, saved: dict[str, Any]) -> None:
        """Take what `state` has said."""
        self._state = dict(saved)
        self._epoch = self._state.pop("epoch")

    def _read(self) -> dict[str, Any]:
        version, words, gauss = random.getstate()
        kind, keys, *rest = numpy.random.get_state(legacy=True)
        return {
            "python": (version, torch.tensor(words), gauss),
            "numpy": (kind, torch.from_numpy(keys.astype("int64")), *rest),  # type: ignore[union-attr]
            "torch": torch.get_rng_state(),
            "own": [generator.get_state() for generator in self._own],
        }

    def _put_back(self) -> None:
        version, words, gauss = self._state["python"]
        random.setstate((version, tuple(words.tolist()), gauss))
        kind, keys, *rest = self._state["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
        torch.set_rng_state(self._state["torch"])
        for generator, state in zip(self._own, self._state["own"], strict=False):
            generator.set_state(state)


def _generators(holder: Any, depth: int) -> Iterator[torch.Generator]:
    """Those of a loader's samplers, each once for every way that leads to it."""
    if isinstance(held := getattr(holder, "generator", None), torch.Generator):
        yield held
    for name in _HOLDERS if depth else ():
        inner = getattr(holder, name, None)
        if isinstance(inner, torch.Generator):
            yield inner
        elif inner is not None:
            yield from _generators(inner, depth - 1)
