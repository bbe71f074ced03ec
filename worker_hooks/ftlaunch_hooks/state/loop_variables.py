"""Variables of the training loop as a part of a rank's state: who gives them, and what was saved of them.

What they are is found by `observe`, once the loop runs. Until then a resumed rank holds what it has read, and saves the
same again: it may die before its loop begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from ftlaunch_hooks.state.collector import Collector
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.json_codec import Json

NAME = "loop_variables"
_KEYS = ("__tensor__", "__packed__", "__array__")  # tags before the key of a tensor


class LoopVariables(Protocol):
    """What gives the variables of the loop at a snapshot."""

    def collect(self, collector: Collector) -> Mapping[str, Json]:
        """Put their tensors into the collector; returns the rest."""


class RestoredVariables:
    """What was saved of them: read, and put back by nobody yet."""

    def __init__(self, tree: Mapping[str, Json], saved: Lookup) -> None:
        """Read all tensors. Raises StateError for one that is missing."""
        self.tree = tree
        self.tensors: dict[str, Tensor] = {key: saved.get(key, "cpu") for key in dict.fromkeys(_tensor_keys(tree))}

    def collect(self, collector: Collector) -> Mapping[str, Json]:
        """See LoopVariables."""
        for key, tensor in self.tensors.items():
            collector.put((NAME,), tensor, key=key)
        return self.tree


def _tensor_keys(tree: Json) -> Iterator[str]:
    if isinstance(tree, list):
        for one in tree:
            yield from _tensor_keys(one)
    elif isinstance(tree, dict):
        for tag, content in tree.items():
            if tag in _KEYS and isinstance(content, str):
                yield content
            else:
                yield from _tensor_keys(content)
