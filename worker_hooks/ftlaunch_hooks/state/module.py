"""A module as a part of a rank's state."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ftlaunch_hooks.state.buffers import NonPersistentBuffers
from ftlaunch_hooks.state.collector import Collector, Taken
from ftlaunch_hooks.state.parts import Loader, Names, check_names
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.dtypes import is_sharded
from ftlaunch_hooks.tensors.json_codec import Json, Path, decode, encode
from ftlaunch_hooks.tensors.memory_layout import Restored
from ftlaunch_hooks.tensors.unchanged import Containers, Unchanged


@dataclass(frozen=True)
class _Before:
    """A module's state as it was collected last."""

    unchanged: Unchanged
    stepped: set[int]
    taken: Taken
    keys: dict[int, str]
    tree: dict[str, Json]


def _dependencies(module: nn.Module, tensors: Sequence[Tensor]) -> Unchanged | None:
    """What a module's state_dict() depends on; None where a module overrides it, or a tensor is sharded."""
    modules = list(module.modules())
    if any(map(_overrides_state_dict, modules)) or any(map(is_sharded, tensors)):
        return None

    def containers() -> Containers:
        dicts: list[dict[Any, Any]] = []
        for m in modules:
            dicts += (m._parameters, m._buffers, m._modules, m._state_dict_hooks, m._state_dict_pre_hooks)
        return dicts, [m._non_persistent_buffers_set for m in modules]

    return Unchanged(containers, tensors)


def _overrides_state_dict(module: nn.Module) -> bool:
    own = any(
        getattr(type(module), method) is not getattr(nn.Module, method) or method in vars(module)
        for method in ("state_dict", "_save_to_state_dict", "get_extra_state")
    )
    return own or bool(module._state_dict_hooks or module._state_dict_pre_hooks)


class ModulePart:
    """An nn.Module: its state_dict, under names that wrappers do not change."""

    kind = "module"

    def __init__(self, name: str, module: nn.Module, names: Names) -> None:
        self.name, self.module, self._names = name, module, names
        self._clean: dict[str, str] = {}
        self._listed: list[str] = []
        self._before: _Before | None = None
        self._parameters: list[tuple[str, Tensor]] = []
        self._modules: list[tuple[str, nn.Module]] = []  # without wrappers
        self._wrappers: list[tuple[str, nn.Module]] = []
        self._seen: list[nn.Module] = []
        self._beside = NonPersistentBuffers(name, module, lambda raw: clean_names(module, raw))
        self._shapes: dict[str, torch.Size] = {}  # of buffers as they were first seen
        self._reshaped: set[str] = set()  # buffers whose shape has changed since
        self._tree: dict[str, Json] = {}  # what state_dict() says
        self._told: dict[str, Json] = {}  # with what else is known of the tensors

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

    def parameter_keys(self) -> list[str]:
        """The keys of all parameters; buffers may be each rank's own."""
        return [self.key(name) for name, tensor in self.tensors()[0].items() if isinstance(tensor, nn.Parameter)]

    def collect(self, collector: Collector) -> dict[str, Json]:
        """See Part."""
        names, before = self._names, self._before
        if (
            before is not None
            and before.stepped == names.stepped
            and before.unchanged.holds()
            and collector.again(before.taken)
        ):
            names.keys = before.keys | names.keys
            return self._tell(before.tree, collector)
        mark = collector.mark()
        tensors, extra = self.tensors()
        keys: dict[int, str] = {}
        for name, tensor in tensors.items():
            key = self.key(name)
            keys.setdefault(id(tensor), key)
            settled, owner = id(tensor) in names.stepped, names.owner(tensor, key)
            collector.put(
                (self.name, name), tensor, "model", owner=owner, settled=settled, key=key, restored=Restored.IN_PLACE
            )
        names.keys = keys | names.keys
        if self._listed != (listed := list(tensors)):
            self._listed = listed
        self._parameters = [(name, tensor) for name, tensor in tensors.items() if isinstance(tensor, nn.Parameter)]
        self._note_shapes(tensors)
        self._note_modules()
        self._beside.find()

        def put(path: Path, tensor: Tensor) -> str:
            return collector.put(path, tensor, "model")

        tree = {"tensors": self._listed, "extra": encode(extra, (self.name,), put)}
        unchanged = _dependencies(self.module, list(tensors.values()))
        self._before = (
            None if unchanged is None else _Before(unchanged, names.stepped, collector.since(mark), keys, tree)
        )
        return self._tell(tree, collector)

    def _note_shapes(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if not isinstance(tensor, nn.Parameter) and self._shapes.setdefault(name, tensor.shape) != tensor.shape:
                self._reshaped.add(name)

    def _note_modules(self) -> None:
        if self._seen != (seen := list(self.module.modules())):
            modules, self._seen = dict(self.module.named_modules()), seen
            clean = clean_names(self.module, modules)
            inner = {clean[path]: module for path, module in modules.items()}  # it comes behind what wraps it
            self._modules = list(inner.items())
            self._wrappers = [(path, module) for path, module in modules.items() if inner[clean[path]] is not module]

    def _tell(self, tree: dict[str, Json], collector: Collector) -> dict[str, Json]:
        """With the names of what else is known of tensors: the same object while nothing has changed."""
        more = {
            "frozen": [name for name, parameter in self._parameters if not parameter.requires_grad],
            "evaluating": [name for name, module in self._modules if not module.training],
            "wrappers_evaluating": [path for path, module in self._wrappers if not module.training],
            "reshaped": sorted(self._reshaped),
            "beside": self._beside.collect(collector),
        }
        if tree is not self._tree or any(self._told[key] != value for key, value in more.items()):
            self._tree, self._told = tree, {**tree, **more}
        return self._told

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Loader:
        """See Part."""
        tensors, extra = self.tensors()
        names = [*tree["tensors"], *_keys(tree["extra"])]
        check_names(f"module `{self.name}`", [*tensors, *extra], names)
        reshaped = set(tree.get("reshaped", ()))
        for name, tensor in tensors.items():
            saved.check(self.key(name), None if name in reshaped else tensor)
        load_beside = self._beside.plan(tree.get("beside", ()), saved)

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
            if "frozen" in tree:  # it is not in a checkpoint of an earlier version
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
