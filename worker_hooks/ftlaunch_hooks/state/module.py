"""An attached nn.Module as a part of a rank's state: its state_dict(), modes, and non-persistent buffers.

Collecting is incremental: where nothing that state_dict() depends on was replaced since the last boundary, the last
collection is used again. `RankState` calls this in the training thread, at step boundaries.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ftlaunch_hooks.state.buffers import NonPersistentBuffers
from ftlaunch_hooks.state.collector import Collector, KnownTensors
from ftlaunch_hooks.state.parts import Loader, Names, check_names
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.dtypes import is_sharded
from ftlaunch_hooks.tensors.json_codec import Json, Path, decode, encode
from ftlaunch_hooks.tensors.memory_layout import Restored
from ftlaunch_hooks.tensors.unchanged import Containers, Unchanged


@dataclass(frozen=True)
class _Before:
    """The last collection of a module's state."""

    unchanged: Unchanged
    stepped: set[int]
    tensors: KnownTensors
    keys: dict[int, str]
    tree: dict[str, Json]


def _dependencies(module: nn.Module, tensors: Sequence[Tensor]) -> Unchanged | None:
    """Return what a module's state_dict() depends on; None where a module overrides it, or a tensor is sharded."""
    modules = list(module.modules())
    if any(map(_overrides_state_dict, modules)) or any(map(is_sharded, tensors)):
        return None

    def containers() -> Containers:
        dicts: list[dict[Any, Any]] = []
        for inner in modules:
            dicts.append(inner._parameters)
            dicts.append(inner._buffers)
            dicts.append(inner._modules)
            dicts.append(inner._state_dict_hooks)
            dicts.append(inner._state_dict_pre_hooks)
        return dicts, [inner._non_persistent_buffers_set for inner in modules]

    return Unchanged(containers, tensors)


def _overrides_state_dict(module: nn.Module) -> bool:
    own = any(
        getattr(type(module), method) is not getattr(nn.Module, method) or method in vars(module)
        for method in ("state_dict", "_save_to_state_dict", "get_extra_state")
    )
    return own or bool(module._state_dict_hooks or module._state_dict_pre_hooks)


class ModulePart:
    """An nn.Module: its state_dict, under clean names, which do not change with wrappers."""

    kind = "module"

    def __init__(self, name: str, module: nn.Module, names: Names) -> None:
        self.name = name
        self.module = module
        self._names = names
        self._clean: dict[str, str] = {}  # names in state_dict() -> clean names
        self._listed: list[str] = []  # clean names of the last collection's tensors
        self._before: _Before | None = None
        self._parameters: list[tuple[str, Tensor]] = []
        self._modules: list[tuple[str, nn.Module]] = []  # clean name and module, without wrappers
        self._wrappers: list[tuple[str, nn.Module]] = []
        self._seen: list[nn.Module] = []
        self._unlisted_buffers = NonPersistentBuffers(name, module, lambda raw: clean_names(module, raw))
        self._shapes: dict[str, torch.Size] = {}  # buffer -> its shape when it was first seen
        self._reshaped: set[str] = set()  # buffers whose shape has changed since
        self._tree: dict[str, Json] = {}  # the last collection of state_dict()
        self._full_tree: dict[str, Json] = {}  # `_tree`, with what `_complete` adds

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return state_dict's tensors and its other values (extra state), both by clean name."""
        state = self.module.state_dict(keep_vars=True)
        if state.keys() != self._clean.keys():
            self._clean = clean_names(self.module, state)
        tensors: dict[str, Tensor] = {}
        extra: dict[str, Any] = {}
        for raw, value in state.items():
            (tensors if isinstance(value, Tensor) else extra)[self._clean[raw]] = value
        return tensors, extra

    def key(self, name: str) -> str:
        """Return the key under which a tensor of this module is saved."""
        return f"{self.name}.{name}".replace("@", "@@")

    def parameter_keys(self) -> list[str]:
        """Return the keys of all parameters. Buffers are left out, because each rank may have its own."""
        return [self.key(name) for name, tensor in self.tensors()[0].items() if isinstance(tensor, nn.Parameter)]

    def collect(self, collector: Collector) -> dict[str, Json]:
        """Put the module's tensors into the collector; return everything else to save. Raises StateError."""
        names = self._names
        before = self._before
        if (
            before is not None
            and before.stepped == names.stepped
            and before.unchanged.holds()
            and collector.add_unchanged(before.tensors)
        ):
            names.keys = before.keys | names.keys
            return self._complete(before.tree, collector)
        mark = collector.mark()
        tensors, extra = self.tensors()
        keys: dict[int, str] = {}
        for name, tensor in tensors.items():
            key = self.key(name)
            keys.setdefault(id(tensor), key)
            collector.put(
                (self.name, name),
                tensor,
                "model",
                owner=names.owner(tensor, key),
                settled=id(tensor) in names.stepped,
                key=key,
                restored=Restored.IN_PLACE,
            )
        names.keys = keys | names.keys
        if self._listed != (listed := list(tensors)):
            self._listed = listed
        self._parameters = [(name, tensor) for name, tensor in tensors.items() if isinstance(tensor, nn.Parameter)]
        self._note_shapes(tensors)
        self._note_modules()
        self._unlisted_buffers.find()

        def put(path: Path, tensor: Tensor) -> str:
            return collector.put(path, tensor, "model")

        tree = {"tensors": self._listed, "extra": encode(extra, (self.name,), put)}
        unchanged = _dependencies(self.module, list(tensors.values()))
        if unchanged is None:
            self._before = None
        else:
            self._before = _Before(
                unchanged=unchanged, stepped=names.stepped, tensors=collector.since(mark), keys=keys, tree=tree
            )
        return self._complete(tree, collector)

    def _note_shapes(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if not isinstance(tensor, nn.Parameter) and self._shapes.setdefault(name, tensor.shape) != tensor.shape:
                self._reshaped.add(name)

    def _note_modules(self) -> None:
        if self._seen != (seen := list(self.module.modules())):
            self._seen = seen
            modules = dict(self.module.named_modules())
            clean = clean_names(self.module, modules)
            inner = {clean[path]: module for path, module in modules.items()}  # wrappers come first, and are replaced
            self._modules = list(inner.items())
            self._wrappers = [(path, module) for path, module in modules.items() if inner[clean[path]] is not module]

    def _complete(self, tree: dict[str, Json], collector: Collector) -> dict[str, Json]:
        """Add modes and non-persistent buffers to the collected tree; return the same object if nothing has changed."""
        more = {
            "frozen": [name for name, parameter in self._parameters if not parameter.requires_grad],
            "evaluating": [name for name, module in self._modules if not module.training],
            "wrappers_evaluating": [path for path, module in self._wrappers if not module.training],
            "reshaped": sorted(self._reshaped),
            "beside": self._unlisted_buffers.collect(collector),
        }
        if tree is not self._tree or any(self._full_tree[key] != value for key, value in more.items()):
            self._tree = tree
            self._full_tree = {**tree, **more}
        return self._full_tree

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Loader:
        """Check that what was saved fits, changing nothing; return a function that loads it. Raises StateError."""
        tensors, extra = self.tensors()
        names = [*tree["tensors"], *_keys(tree["extra"])]
        check_names(f"module `{self.name}`", [*tensors, *extra], names)
        reshaped = set(tree.get("reshaped", ()))
        for name, tensor in tensors.items():
            saved.check(self.key(name), None if name in reshaped else tensor)
        load_beside = self._unlisted_buffers.plan(tree.get("beside", ()), saved)

        def load() -> None:
            self._reshaped |= reshaped
            for name in reshaped:
                dtype, shape = saved.info(self.key(name))
                tensors[name].data = torch.empty(shape, dtype=dtype, device=tensors[name].device)
            state = self.module.state_dict(keep_vars=True)
            saved.fill({self.key(name): tensor for name, tensor in tensors.items()})
            others = decode(tree["extra"], saved.get)
            new: Any = collections.OrderedDict()
            for raw in state:
                name = self._clean[raw]
                new[raw] = tensors[name] if name in tensors else others[name]
            new._metadata = getattr(state, "_metadata", None)  # versions of the modules' own formats
            self.module.load_state_dict(new, strict=True)  # copies nothing onto itself
            if "frozen" in tree:  # checkpoints of earlier versions lack the entry
                _freeze(tensors, set(tree["frozen"]))
            for key, modules in (("evaluating", self._modules), ("wrappers_evaluating", self._wrappers)):
                for name, module in modules if key in tree else ():
                    module.training = name not in tree[key]
            load_beside()

        return load


def _freeze(tensors: Mapping[str, Tensor], frozen: set[str]) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            tensor.requires_grad_(name not in frozen)


def _keys(tree: Json) -> list[str]:
    """Return the keys of an encoded dictionary whose keys are strings."""
    return [key for key, _ in tree["__pairs__"]] if "__pairs__" in tree else list(tree)


def clean_names(module: nn.Module, raw: Mapping[str, Any]) -> dict[str, str]:
    """Map names in a state_dict to clean names, without what DistributedDataParallel and torch.compile put in front."""
    wrapped = set()
    for path, child in module.named_modules():
        if isinstance(child, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            wrapped.add(f"{path}.module".lstrip("."))
        elif "_orig_mod" in child._modules:
            wrapped.add(f"{path}._orig_mod".lstrip("."))
    return {name: _clean_name(name, wrapped) for name in raw}


def _clean_name(name: str, wrapped: set[str]) -> str:
    """Drop from a dotted name the parts that a wrapper has added. wrapped: paths that end with such a part."""
    parts = name.split(".")
    return ".".join(part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in wrapped)
