"""One attached object each: how its state is taken, checked against what was saved, and put back."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ftlaunch_hooks.encode import Json, Path, StateError, decode, encode, join
from ftlaunch_hooks.items import Shelf, is_sharded
from ftlaunch_hooks.shards import Lookup

Load = Callable[[], None]


class Part(Protocol):
    """An attached object."""

    kind: str

    def collect(self, shelf: Shelf) -> dict[str, Json]:
        """Put the tensors on the shelf; returns the rest. Raises StateError."""

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Load:
        """Check that what was saved fits, changing nothing; returns what loads it. Raises StateError."""


class Names:
    """What the attached modules know of their parameters, for the optimizers."""

    def __init__(self, replicated: Mapping[int, nn.Parameter]) -> None:
        self.replicated = replicated
        self.owners: Mapping[str, int] = {}  # key of a replicated parameter -> the rank that saves it
        self.keys: dict[int, str] = {}  # id of a parameter -> its key
        self.stepped: set[int] = set()  # ids of the parameters of attached optimizers

    def owner(self, parameter: object, key: str) -> int | None:
        """The rank that saves a replicated parameter; None when it is not one."""
        return self.owners.get(key) if id(parameter) in self.replicated else None


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


# --- modules ----------------------------------------------------------------------------------------------


class ModulePart:
    """An nn.Module: its state_dict, under names that wrappers do not change."""

    kind = "module"

    def __init__(self, name: str, module: nn.Module, names: Names) -> None:
        self.name, self.module, self._names = name, module, names
        self._clean: dict[str, str] = {}
        self._tensors: list[str] = []

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """state_dict's tensors and its other values (extra state), by clean name."""
        state = self.module.state_dict(keep_vars=True)
        if state.keys() != self._clean.keys():
            self._clean = clean_names(self.module, state)
        tensors: dict[str, Tensor] = {}
        extra: dict[str, Any] = {}
        for raw, value in state.items():
            (tensors if isinstance(value, Tensor) else extra)[self._clean[raw]] = value
        return tensors, extra

    def key(self, name: str) -> str:
        """The key of a tensor of this module."""
        return f"{self.name}.{name}".replace("@", "@@")

    def collect(self, shelf: Shelf) -> dict[str, Json]:
        """See Part."""
        tensors, extra = self.tensors()
        names = self._names
        for name, tensor in tensors.items():
            key = self.key(name)
            names.keys.setdefault(id(tensor), key)
            settled, owner = id(tensor) in names.stepped, names.owner(tensor, key)
            shelf.put((self.name, name), tensor, "model", owner=owner, settled=settled, key=key)
        if self._tensors != (listed := list(tensors)):
            self._tensors = listed

        def put(path: Path, tensor: Tensor) -> str:
            return shelf.put(path, tensor, "model")

        return {"tensors": self._tensors, "extra": encode(extra, (self.name,), put)}

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Load:
        """See Part."""
        tensors, extra = self.tensors()
        names = [*tree["tensors"], *_keys(tree["extra"])]
        check_names(f"module `{self.name}`", [*tensors, *extra], names)
        for name, tensor in tensors.items():
            saved.check(self.key(name), tensor)

        def load() -> None:
            state = self.module.state_dict(keep_vars=True)
            found = saved.read({self.key(name): tensor for name, tensor in tensors.items()})
            others = decode(tree["extra"], saved.get)
            new: Any = collections.OrderedDict()
            for raw in state:
                name = self._clean[raw]
                new[raw] = found[self.key(name)] if name in tensors else others[name]
            new._metadata = getattr(state, "_metadata", None)  # versions of the modules' own formats
            self.module.load_state_dict(new, strict=True)

        return load


def _keys(tree: Json) -> list[str]:
    """The keys of an encoded dictionary whose keys are strings."""
    return [key for key, _ in tree["__pairs__"]] if "__pairs__" in tree else list(tree)


def clean_names(module: nn.Module, raw: Mapping[str, Any]) -> dict[str, str]:
    """Names in a state_dict -> names without what DistributedDataParallel and torch.compile put in front."""
    wrapped = set()
    for path, child in module.named_modules():
        if isinstance(child, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            wrapped.add(f"{path}.module".lstrip("."))
        elif "_orig_mod" in child._modules:
            wrapped.add(f"{path}._orig_mod".lstrip("."))
    return {name: _clean_name(name, wrapped) for name in raw}


def _clean_name(name: str, wrapped: set[str]) -> str:
    parts = name.split(".")
    return ".".join(part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in wrapped)


# --- everything else --------------------------------------------------------------------------------------


class OtherPart:
    """Anything with state_dict() and load_state_dict()."""

    kind = "other"

    def __init__(self, name: str, target: Any) -> None:
        self.name, self.target = name, target

    def collect(self, shelf: Shelf) -> dict[str, Json]:
        """See Part."""
        return {"state": encode(self.target.state_dict(), (self.name,), shelf.put)}

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Load:
        """See Part."""
        live: dict[str, Tensor] = {}

        def note(path: Path, tensor: Tensor) -> str:
            key = join(path).replace("@", "@@")
            if is_sharded(tensor):  # only these need one that is there to be read into
                live[key] = tensor
            return key

        encode(self.target.state_dict(), (self.name,), note)
        wanted: list[str] = []

        def get(key: str, device: str) -> Tensor:
            saved.check(key, live.get(key))
            wanted.append(key)
            return torch.empty(0)

        decode(tree["state"], get)

        def load() -> None:
            sharded = {key: torch.empty_like(live[key]) for key in wanted if key in live}
            saved.fill(sharded)

            def read(key: str, device: str) -> Tensor:
                return sharded[key] if key in sharded else saved.get(key, device)

            self.target.load_state_dict(decode(tree["state"], read))

        return load
