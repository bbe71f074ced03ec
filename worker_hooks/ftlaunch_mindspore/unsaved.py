"""What a training of MindSpore's uses and cannot be saved. It is told of once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
from mindspore.train import Callback

from ftlaunch_hooks.process.say import say

# operators whose kernels keep the random numbers to themselves
_RANDOM = frozenset((
    "Bernoulli", "Dropout", "Dropout2D", "Dropout3D", "DropoutExt", "DropoutGenMask", "DropoutGenMaskExt", "Gamma",
    "LogNormalReverse", "LogUniformCandidateSampler", "Multinomial", "MultinomialWithReplacement",
    "NonDeterministicInts", "ParameterizedTruncatedNormal", "Poisson", "RandomCategorical", "RandomChoiceWithMask",
    "RandomGamma", "RandomPoisson", "RandomShuffle", "Randperm", "RandpermV2", "StandardLaplace", "StandardNormal",
    "TruncatedNormal", "Uniform", "UniformCandidateSampler", "UniformInt", "UniformReal",
))  # fmt: skip
_SIMPLE = (bool, int, float, str, type(None), list, dict)
_LONGEST = 1000  # characters of a value that is compared


class Unsaved:
    """Looks at a training's network and callbacks; each thing is told of once."""

    def __init__(self, network: Any, callbacks: Iterable[Callback]) -> None:
        """network: the train network. callbacks: the script's own, as training begins."""
        self._network = network
        self._callbacks = {id(one): (one, _values(one)) for one in callbacks}

    def look(self, step: int) -> None:
        """At the boundary of `step`, which this process has made."""
        if kernels := sorted(set(_random_operators(self._network))):
            say(
                f"not exact: the network draws random numbers within MindSpore's kernels ({', '.join(kernels)}), where"
                " they cannot be saved; a training that resumes draws others from there on"
            )
        for one, before in self._callbacks.values():
            now = _values(one)
            if changed := [name for name in now if now[name] != before.get(name)]:
                say(
                    f"not saved: {', '.join(changed[:3])} of the callback {type(one).__name__}, which changed before"
                    f" step {step}; a training that resumes begins with them anew"
                )


def _random_operators(network: Any) -> Iterator[str]:
    """Their names: those in the graph, or where there is none those of the cells."""
    if ms.get_context("mode") == ms.GRAPH_MODE and (graph := network.get_func_graph_proto()):
        yield from (name.decode() for name in re.findall(rb"[A-Z][A-Za-z0-9]+", graph) if name.decode() in _RANDOM)
        return
    for _, cell in network.cells_and_names():
        yield from (one.name for one in cell._primitives.values() if one is not None and one.name in _RANDOM)


def _values(callback: Callback) -> dict[str, str]:
    """The simple attributes of a callback, to be compared. Those of MindSpore's own that only report are left out."""
    if type(callback).__name__ in ("LossMonitor", "TimeMonitor", "ModelCheckpoint", "SummaryCollector"):
        return {}
    found = {name: repr(value) for name, value in vars(callback).items() if isinstance(value, _SIMPLE)}
    return {name: text for name, text in found.items() if len(text) <= _LONGEST}
