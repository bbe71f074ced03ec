"""Digests of each attached object's state, which show after a restore whether the object came back as it was saved.

At a snapshot the live objects are sampled, not the files: a number of values at equal distances from every saved
tensor, and everything else that an object's state_dict() holds. After a restore the objects are sampled in the same
way. This finds a value that was not saved, was damaged, or does not come back through load_state_dict() at once, also
where no step uses the value for a long time: an average that only the end of a training reads, or an optimizer's
averages for an expert that no sample goes to.
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
"""about how many values of one object are sampled: all of a small one, a few of each tensor of a large one"""
_LEAST_PER_TENSOR = 16  # values


class PartDigests:
    """Digests one rank's attached objects, at each snapshot and after a restore."""

    def __init__(self, names: Iterable[str], modules: Iterable[str] = ()) -> None:
        """Take the names of the objects.

        Args:
            names: the attached objects to digest.
            modules: all attached modules, digested or not.
        """
        self._names = list(names)
        self._modules = list(modules)
        self._layout = ""
        self._found: Sequence[tuple[str, Tensor]] | None = None
        self._samples: dict[str, ValueSample] = {}
        self._texts: dict[tuple[str, str], tuple[Json, bytes]] = {}
        """(object, key in its tree) -> the entry under that key, and the entry's JSON text"""

    def digest(self, found: Sequence[tuple[str, Tensor]], state: Mapping[str, Mapping[str, Json]]) -> dict[str, str]:
        """Sample the objects as they are now. Waits for what is queued on a device.

        Args:
            found: the tensors of this rank, local and strided, with their keys without a rank. Each key begins with the
                name of its object. Pass the same list as last time where no tensor was replaced.
            state: name of an object -> its tree, without tensors.

        Returns:
            Name of an object -> digest. A digest has three parts of 16 hexadecimal digits: for the shapes of what this
            rank holds of all modules, for the object's tensors, and for everything else.
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
        """Digest an entry that is saved beside the objects and holds no tensors; comparable like the objects' digests.

        Call this directly after `digest`, at the same boundary, whose layout is the first part: two parts of 16
        hexadecimal digits, the layout and the entry.
        """
        return f"{self._layout}{xxhash.xxh3_64(json.dumps(entry, sort_keys=True).encode()).hexdigest()}"

    def _digest_layout(self, found: Sequence[tuple[str, Tensor]]) -> str:
        """Digest the shapes of the modules' tensors.

        Modules are restored name by name, or refused, so other shapes mean that the modules are sharded in another way.
        """
        shapes = [f"{key} {tuple(tensor.shape)}" for key, tensor in found if _part_of(key, self._modules) is not None]
        return xxhash.xxh3_64("\n".join(sorted(shapes)).encode()).hexdigest()

    def _sample(self, found: Sequence[tuple[str, Tensor]]) -> dict[str, ValueSample]:
        """Choose the values of each object, depending only on what the object itself holds.

        The order is that of the keys, because an optimizer may hold its tensors in another order after a restore.
        """
        by_object: dict[str, list[Tensor]] = {name: [] for name in self._names}
        for key, tensor in sorted(found, key=lambda entry: entry[0]):
            name = _part_of(gradients.object_of_value(key), by_object)
            if name is not None:
                by_object[name].append(tensor)
        return {name: ValueSample(tensors, _values_each(tensors)) for name, tensors in by_object.items()}

    def _digest_tree(self, name: str, tree: Mapping[str, Json]) -> str:
        """Digest an object's tree. An entry that is the same object as last time is not converted to text again."""
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
    """Return how many values of each tensor are sampled: what small tensors leave of `VALUES` goes to large ones."""
    left = VALUES
    most = _LEAST_PER_TENSOR
    for number, size in enumerate(sorted(tensor.numel() for tensor in tensors)):
        most = max(left // (len(tensors) - number), _LEAST_PER_TENSOR)
        left -= min(size, most)
    return most


def _part_of(key: str, names: Iterable[str]) -> str | None:
    """Return the attached object to which a tensor's key belongs; if several names fit, the longest."""
    fitting = [name for name in names if key.startswith(f"{name.replace('@', '@@')}.")]
    return max(fitting, key=len, default=None)


def find_differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of the objects whose digests differ.

    Objects that cannot be compared are left out: those without a digest in `before`, and those of ranks that hold other
    shards of the modules.
    """
    differing = []
    for name, digest in now.items():
        earlier = before.get(name, digest)
        has_same_layout = earlier[:LAYOUT_DIGITS] == digest[:LAYOUT_DIGITS]
        if has_same_layout and earlier != digest:
            differing.append(name)
    return differing
