"""The parts of a rank's state, one for each attached object: the protocol, and what parts share.

`Part` is what a new kind of attached object implements. `Names` tells optimizers the names of modules' parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ftlaunch_contract.node_ranks import NodeRanks, one_node
from ftlaunch_hooks.state.adapter import modules_kept_by
from ftlaunch_hooks.state.collector import Collector, Owner
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.dtypes import is_sharded
from ftlaunch_hooks.tensors.json_codec import Json, Path, StateError, decode, encode, join
from ftlaunch_hooks.tensors.replicated import Replicated

Loader = Callable[[], None]
"""Loads what a plan has checked."""


class Part(Protocol):
    """An attached object as a part of a rank's state."""

    kind: str

    def collect(self, collector: Collector) -> dict[str, Json]:
        """Put the object's tensors into the collector; return everything else as JSON. Raises StateError."""

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Loader:
        """Check that what was saved fits, changing nothing; return a function that loads it. Raises StateError."""


class Names:
    """What optimizers need to know about the parameters of attached modules."""

    def __init__(
        self,
        replicated: Mapping[int, Replicated],
        objects: Mapping[str, Any] | None = None,
        said: Collection[str] = (),
        node: NodeRanks | None = None,
    ) -> None:
        """Take what is known at attach(); the fields that change are filled by `RankState` at each collection.

        Args:
            replicated: id of a parameter -> how it is replicated.
            objects: name -> attached object, of those that are saved.
            said: the objects of which the script itself says that they are kept equal.
            node: the ranks of this rank's node; None: this rank is alone.
        """
        objects = objects or {}
        self.replicated = replicated
        self.said = said
        self.kept = kept_elsewhere(objects)
        self._node = node or one_node(1)
        self._modules = [target for target in objects.values() if isinstance(target, nn.Module)]
        self.owners: Mapping[str, int] = {}  # key of a replicated parameter -> place of its owner, from share_out
        self.keys: dict[int, str] = {}  # id of a parameter -> its key
        self.stepped: set[int] = set()  # ids of the parameters of attached optimizers

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of attached modules by key, as of the last collection."""
        found = (parameter for module in self._modules for parameter in module.parameters())
        return {self.keys[id(parameter)]: parameter for parameter in found if id(parameter) in self.keys}

    def owner(self, parameter: object, key: str) -> Owner | None:
        """Return which rank saves a replicated parameter; None for a parameter that is not replicated."""
        replicated = self.replicated.get(id(parameter))
        place = self.owners.get(key)
        return None if replicated is None or place is None else Owner(place, replicated.group)

    def groups(self) -> list[tuple[int, ...]]:
        """Return the groups of ranks that keep a parameter equal, in the order of the parameters."""
        return list(dict.fromkeys(replicated.group for replicated in self.replicated.values()))

    def places(self, group: Sequence[int]) -> tuple[int, ...]:
        """Return the places, among the node's ranks, of the ranks in a group; of all ranks for an empty group."""
        return tuple(self._node.place(rank) for rank in self._node.ranks if not group or rank in group)


def kept_elsewhere(objects: Mapping[str, Any]) -> frozenset[int]:
    """Return the ids of modules whose plain attributes an attached object saves."""
    return frozenset(id(module) for module in modules_kept_by(objects.values()))


def loose_key(optimizer: str, position: int | str) -> str:
    """Return the key of a parameter of no attached module: the optimizer's name, and the place in its groups."""
    return f"{optimizer}.{position}"


def list_names(names: Iterable[str]) -> str:
    """List at most three names for a message, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if ordered[3:] else ""
    return ", ".join(f"`{name}`" for name in ordered[:3]) + more


def check_names(what: str, live: Iterable[str], saved: Iterable[str]) -> None:
    """Raise StateError unless the two collections hold the same names. what: the object, for the message."""
    now = set(live)
    then = set(saved)
    if missing := now - then:
        raise StateError(f"cannot restore {what}: {list_names(missing)} not in what was saved")
    if surplus := then - now:
        raise StateError(f"cannot restore {what}: {list_names(surplus)} saved, but not there now")


class OtherPart:
    """Any attached object with state_dict() and load_state_dict() that is no module and no optimizer."""

    kind = "other"

    def __init__(self, name: str, target: Any) -> None:
        self.name = name
        self.target = target

    def collect(self, collector: Collector) -> dict[str, Json]:
        """Put the tensors of the object's state_dict() into the collector; return the rest. Raises StateError."""
        return {"state": encode(self.target.state_dict(), (self.name,), collector.put)}

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Loader:
        """Check that what was saved can be read, without changing anything; return a function that loads it.

        Raises:
            StateError: a tensor is missing or does not fit.
        """
        live: dict[str, Tensor] = {}

        def note(path: Path, tensor: Tensor) -> str:
            key = join(path).replace("@", "@@")
            if is_sharded(tensor):  # a shard is read into a tensor that is sharded already
                live[key] = tensor
            return key

        encode(self.target.state_dict(), (self.name,), note)
        wanted: list[str] = []

        def get(key: str, device: str) -> Tensor:
            saved.check(key, live.get(key))
            wanted.append(key)
            return torch.empty(0, device="cpu")

        decode(tree["state"], get)

        def load() -> None:
            sharded = {key: torch.empty_like(live[key]) for key in wanted if key in live}
            saved.fill(sharded)

            def read(key: str, device: str) -> Tensor:
                return sharded[key] if key in sharded else saved.get(key, device)

            self.target.load_state_dict(decode(tree["state"], read))

        return load
