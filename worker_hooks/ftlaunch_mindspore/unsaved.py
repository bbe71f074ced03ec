"""Warn of things that a MindSpore training uses and that cannot be saved.

ExceptionCheckpoint calls `Unsaved` on the main thread, at the first boundary after a step of this process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
from mindspore.train import Callback

from ftlaunch_hooks.process.say import say

# operators whose kernels keep the states of their random numbers to themselves
_RANDOM = frozenset((
    "Bernoulli", "Dropout", "Dropout2D", "Dropout3D", "DropoutExt", "DropoutGenMask", "DropoutGenMaskExt", "Gamma",
    "LogNormalReverse", "LogUniformCandidateSampler", "Multinomial", "MultinomialWithReplacement",
    "NonDeterministicInts", "ParameterizedTruncatedNormal", "Poisson", "RandomCategorical", "RandomChoiceWithMask",
    "RandomGamma", "RandomPoisson", "RandomShuffle", "Randperm", "RandpermV2", "StandardLaplace", "StandardNormal",
    "TruncatedNormal", "Uniform", "UniformCandidateSampler", "UniformInt", "UniformReal",
))  # fmt: skip
_SIMPLE = (bool, int, float, str, type(None), list, dict)
_LONGEST = 1000  # characters of the repr of an attribute; longer ones are not compared


class Unsaved:
    """Finds what cannot be saved in a training's network and callbacks."""

    def __init__(self, network: Any, callbacks: Iterable[Callback]) -> None:
        """Record the attributes of callbacks, as training begins.

        Args:
            network: the cell that MindSpore trains.
            callbacks: the script's own callbacks.
        """
        self._network = network
        self._callbacks = {id(callback): (callback, _values(callback)) for callback in callbacks}

    def look(self, step: int) -> None:
        """Warn of random operators, and of callbacks that changed since training began.

        Args:
            step: the step that this process has just completed.
        """
        if kernels := sorted(set(_random_operators(self._network))):
            say(
                f"not exact: the network draws random numbers within MindSpore's kernels ({', '.join(kernels)}), where"
                " they cannot be saved; a training that resumes draws others from there on"
            )
        for callback, before in self._callbacks.values():
            now = _values(callback)
            kind = type(callback).__name__
            if changed := [name for name in now if now[name] != before.get(name)]:
                say(
                    f"not saved: {', '.join(changed[:3])} of the callback {kind}, which changed before"
                    f" step {step}; a training that resumes begins with them anew"
                )


def _random_operators(network: Any) -> Iterator[str]:
    """Yield the names of random operators in the network's graph, or without a graph in its cells."""
    if ms.get_context("mode") == ms.GRAPH_MODE and (graph := network.get_func_graph_proto()):
        yield from (name.decode() for name in re.findall(rb"[A-Z][A-Za-z0-9]+", graph) if name.decode() in _RANDOM)
        return
    for _, cell in network.cells_and_names():
        for primitive in cell._primitives.values():
            if primitive is not None and primitive.name in _RANDOM:
                yield primitive.name


def _values(callback: Callback) -> dict[str, str]:
    """Return the repr of a callback's simple attributes by name; nothing for MindSpore's callbacks that only report."""
    if type(callback).__name__ in ("LossMonitor", "TimeMonitor", "ModelCheckpoint", "SummaryCollector"):
        return {}
    found = {name: repr(value) for name, value in vars(callback).items() if isinstance(value, _SIMPLE)}
    return {name: text for name, text in found.items() if len(text) <= _LONGEST}
