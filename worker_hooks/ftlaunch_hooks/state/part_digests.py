"""Digests of what each attached object is saved with: they show, behind a restore, whether it was put back as it was.

At a snapshot the live objects are sampled, not the files: of every tensor that is saved so many values, at equal
distances, and everything else that an object's state_dict() says. Behind a restore the objects, as they are then, are
sampled in the same way. A value that was not saved, was damaged, or does not come back through a load_state_dict() is
found there and then, also where no step uses it for a long time: an average that only the end of a training reads, or
an optimizer's averages for an expert that no sample goes to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import xxhash
from torch import Tensor

from ftlaunch_hooks.state import gradients
from ftlaunch_hooks.storage.saved_digests import LAYOUT_DIGITS
from ftlaunch_hooks.tensors.json_codec import Json
from ftlaunch_hooks.tensors.value_samples import ValueSample

VALUES = 1 << 15
"""of one object sampled at a snapshot, about: all values of a small one, of a large one a few of each tensor"""
_FEWEST_OF_ONE = 16


class PartDigests:
    """The digests of one rank's attached objects, again and again."""

    def __init__(self, names: Iterable[str], modules: Iterable[str] = ()) -> None:
        """names: of the attached objects. modules: of those that are modules, digested or not."""
        self._names, self._modules = list(names), list(modules)
        self._layout = ""
        self._found: Sequence[tuple[str, Tensor]] | None = None
        self._samples: dict[str, ValueSample] = {}
        self._texts: dict[tuple[str, str], tuple[Json, bytes]] = {}
        """(object, entry of its tree) -> the entry, and its text"""

    def digest(self, found: Sequence[tuple[str, Tensor]], state: Mapping[str, Mapping[str, Json]]) -> dict[str, str]:
        """Sample the objects as they are now. Waits for what is queued on a device.

        Args:
            found: the tensors of this rank, local and strided, with their keys without a rank: each key begins with
                the name of its object. The same list as last time where no tensor was replaced.
            state: name of an object -> its tree, without tensors.

        Returns:
            Name of an object -> digest: of 16 hexadecimal digits each for the shapes of what this rank holds of all
            modules, for the object's tensors, and for all else.
        """
        if found is not self._found:
            self._found = found
            self._samples = self._sample(found)
            self._layout = self._digest_layout(found)
        return {
            name: f"{self._layout}{self._samples[name].digest():016x}{self._digest_tree(name, state[name])}"
            for name in self._names
        }

    def digest_entry(self, entry: Json) -> str:
        """Digest something that is saved beside the objects, and holds no tensors; comparable as theirs are.

        Call it right behind `digest`, of the same boundary.
        """
        return f"{self._layout}{xxhash.xxh3_64(json.dumps(entry, sort_keys=True).encode()).hexdigest()}"

    def _digest_layout(self, found: Sequence[tuple[str, Tensor]]) -> str:
        """Modules are restored name by name, or refused: other shapes mean that they are sharded in another way."""
        shapes = [f"{key} {tuple(tensor.shape)}" for key, tensor in found if _part_of(key, self._modules) is not None]
        return xxhash.xxh3_64("\n".join(sorted(shapes)).encode()).hexdigest()

    def _sample(self, found: Sequence[tuple[str, Tensor]]) -> dict[str, ValueSample]:
        """Choose the values of each object. They depend on what the object itself holds, and on nothing beside it.

        The order is that of the keys: an optimizer may hold its tensors in another order once it was restored.
        """
        of_part: dict[str, list[Tensor]] = {name: [] for name in self._names}
        for key, tensor in sorted(found, key=lambda one: one[0]):
            name = _part_of(gradients.object_of_value(key), of_part)
            if name is not None:
                of_part[name].append(tensor)
        return {name: ValueSample(tensors, _values_each(tensors)) for name, tensors in of_part.items()}

    def _digest_tree(self, name: str, tree: Mapping[str, Json]) -> str:
        """An entry that is the same object as last time is not written out again."""
        found = xxhash.xxh3_64()
        for key in sorted(tree):
            entry = tree[key]
            known = self._texts.get((name, key))
            if known is None or known[0] is not entry or not isinstance(entry, (dict, list)):
                text = json.dumps(entry, sort_keys=True, allow_nan=False).encode()
                known = self._texts[name, key] = (entry, text)
            found.update(key.encode())
            found.update(known[1])
        return found.hexdigest()


def _values_each(tensors: Sequence[Tensor]) -> int:
    """How many values of each tensor are sampled: what small tensors leave of the object's share is for large ones."""
    left, most = VALUES, _FEWEST_OF_ONE
    for number, size in enumerate(sorted(tensor.numel() for tensor in tensors)):
        most = max(left // (len(tensors) - number), _FEWEST_OF_ONE)
        left -= min(size, most)
    return most


def _part_of(key: str, names: Iterable[str]) -> str | None:
    """The attached object that a tensor's key belongs to: of several whose names fit the longest."""
    fitting = [name for name in names if key.startswith(f"{name.replace('@', '@@')}.")]
    return max(fitting, key=len, default=None)


def find_differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the objects whose digests differ, of those that can be compared.

    Those of ranks that hold other shards of the modules cannot be, nor can an object that has none in `before`.
    """
    return [
        name
        for name, digest in now.items()
        if before.get(name, digest)[:LAYOUT_DIGITS] == digest[:LAYOUT_DIGITS] and before.get(name, digest) != digest
    ]
