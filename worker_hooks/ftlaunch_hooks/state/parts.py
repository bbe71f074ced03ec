"""The parts of a rank's state, one for each attached object: collecting, checking and restoring it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ftlaunch_contract.node_ranks import NodeRanks, one_node
from ftlaunch_hooks.state.collector import Collector, Owner
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.dtypes import is_sharded
from ftlaunch_hooks.tensors.json_codec import Json, Path, StateError, decode, encode, join
from ftlaunch_hooks.tensors.replicated import Replicated

Loader = Callable[[], None]


class Part(Protocol):
    """An attached object."""

    kind: str

    def collect(self, collector: Collector) -> dict[str, Json]:
        """Put the tensors into the collector; returns the rest. Raises StateError."""

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Loader:
        """Check that what was saved fits, changing nothing; returns what loads it. Raises StateError."""


class Names:
    """What the optimizers must know of the attached modules' parameters."""

    def __init__(
        self,
        replicated: Mapping[int, Replicated],
        objects: Mapping[str, Any] | None = None,
        said: Collection[str] = (),
        node: NodeRanks | None = None,
    ) -> None:
        """objects: what is attached and saved, by name. said: those of which the script says who keeps them equal.

        node: the ranks of this rank's node; None: this rank is alone.
        """
        objects = objects or {}
        self.replicated, self.said, self.kept = replicated, said, kept_elsewhere(objects)
        self._node = node or one_node(1)
        self._modules = [target for target in objects.values() if isinstance(target, nn.Module)]
        self.owners: Mapping[str, int] = {}  # key of a replicated parameter -> place of its owner, see share_out
        self.keys: dict[int, str] = {}  # id of a parameter -> its key
        self.stepped: set[int] = set()  # ids of the parameters of attached optimizers

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of attached modules, by key, as of the last collection."""
        found = (parameter for module in self._modules for parameter in module.parameters())
        return {self.keys[id(parameter)]: parameter for parameter in found if id(parameter) in self.keys}

    def owner(self, parameter: object, key: str) -> Owner | None:
        """Who saves a replicated parameter, see share_out; None when it is not one."""
        replicated, place = self.replicated.get(id(parameter)), self.owners.get(key)
        return None if replicated is None or place is None else Owner(place, replicated.group)

    def groups(self) -> list[tuple[int, ...]]:
        """The groups of ranks that keep a parameter equal, in the order in which the parameters come."""
        return list(dict.fromkeys(one.group for one in self.replicated.values()))

    def places(self, group: Sequence[int]) -> tuple[int, ...]:
        """The places, among the node's ranks, of those of a group; of an empty one all."""
        return tuple(self._node.place(rank) for rank in self._node.ranks if not group or rank in group)


def kept_elsewhere(objects: Mapping[str, Any]) -> frozenset[int]:
    """Ids of modules whose plain attributes an attached object saves: those in its `keeps_attributes_of`."""
    kept = (
        getattr(target, "keeps_attributes_of", ())
        for name, target in objects.items()
        if not isinstance(target, nn.Module)
    )
    return frozenset(id(module) for modules in kept for module in modules)


def loose_key(optimizer: str, position: int | str) -> str:
    """The name of a parameter of no attached module: the optimizer's, and its place in the optimizer's groups."""
    return f"{optimizer}.{position}"


def few(names: Iterable[str]) -> str:
    """At most three of the names, for a message."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if ordered[3:] else ""
    return ", ".join(f"`{name}`" for name in ordered[:3]) + more


def check_names(what: str, live: Iterable[str], saved: Iterable[str]) -> None:
    """Raises StateError when the two collections do not hold the same names."""
    now, then = set(live), set(saved)
    if missing := now - then:
        raise StateError(f"cannot restore {what}: {few(missing)} not in what was saved")
    if surplus := then - now:
        raise StateError(f"cannot restore {what}: {few(surplus)} saved, but not there now")


class OtherPart:
    """Anything with state_dict() and load_state_dict()."""

    kind = "other"

    def __init__(self, name: str, target: Any) -> None:
        self.name, self.target = name, target

    def collect(self, collector: Collector) -> dict[str, Json]:
        """See Part."""
        return {"state": encode(self.target.state_dict(), (self.name,), collector.put)}

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Loader:
        """See Part."""
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
