"""Variables of the training loop as a part of a rank's state.

`observe` finds the variables once the loop runs. Until then a resumed rank keeps what it has read, and saves the same
again, because it may die before its loop begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from ftlaunch_hooks.state.collector import Collector
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.json_codec import Json

NAME = "loop_variables"
_TAGS = ("__tensor__", "__packed__", "__array__")  # dictionary keys whose value is the key of a tensor


class LoopVariables(Protocol):
    """Supplies the variables of the training loop at a snapshot; implemented by `observe`."""

    def collect(self, collector: Collector) -> Mapping[str, Json]:
        """Put the variables' tensors into the collector; return everything else."""


class RestoredVariables:
    """Variables that were read from a checkpoint or snapshot, but not put back yet."""

    def __init__(self, tree: Mapping[str, Json], saved: Lookup) -> None:
        """Read all tensors. Raises StateError for one that is missing."""
        self.tree = tree
        self.tensors: dict[str, Tensor] = {key: saved.get(key, "cpu") for key in dict.fromkeys(_tensor_keys(tree))}

    def collect(self, collector: Collector) -> Mapping[str, Json]:
        """Put the tensors that were read into the collector; return the tree that was read."""
        for key, tensor in self.tensors.items():
            collector.put((NAME,), tensor, key=key)
        return self.tree


def _tensor_keys(tree: Json) -> Iterator[str]:
    if isinstance(tree, list):
        for entry in tree:
            yield from _tensor_keys(entry)
    elif isinstance(tree, dict):
        for tag, content in tree.items():
            if tag in _TAGS and isinstance(content, str):
                yield content
            else:
                yield from _tensor_keys(content)
