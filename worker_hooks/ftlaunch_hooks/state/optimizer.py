"""An attached optimizer as a part of a rank's state: saved by parameter name, and restored bit for bit.

Collecting is incremental: where nothing that state_dict() depends on was replaced since the last boundary, the last
collection is used again. `RankState` calls this in the training thread, at step boundaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ftlaunch_hooks.state.collector import Collector, KnownTensors, Owner, owner_of_slot
from ftlaunch_hooks.state.parts import Loader, Names, check_names, loose_key
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.dtypes import is_sharded
from ftlaunch_hooks.tensors.json_codec import Json, Path, StateError, decode, encode, tag_tensor
from ftlaunch_hooks.tensors.replicated import updates_all_parameters
from ftlaunch_hooks.tensors.unchanged import Containers, Unchanged

_Slots = dict[str, Json]
"""name of an entry in a parameter's state (`exp_avg`, ...) -> its encoded value"""
_CPU = torch.device("cpu")
_CONSTANTS = (type(None), bool, int, float, str)  # values of these types never change in place


@dataclass(frozen=True)
class _TensorSlot:
    """An entry of a parameter's optimizer state that holds a tensor."""

    name: str
    key: str
    owner: Owner | None
    device: torch.device

    def fits(self, value: object) -> bool:
        """Whether a value can be saved in the place of the value before it."""
        return isinstance(value, Tensor) and value.device == self.device


@dataclass(frozen=True)
class _Described:
    """The slots of one parameter's state, as they were when they last changed."""

    parameter: Tensor
    names: tuple[str, ...]
    tensors: list[_TensorSlot]
    tree: _Slots  # of the slots with tensors alone

    def fits(self, parameter: Tensor, slots: Mapping[str, Any]) -> bool:
        """Whether the slots are the same as before, apart from their values."""
        if self.parameter is not parameter or self.names != tuple(slots):
            return False
        return all(slot.fits(slots[slot.name]) for slot in self.tensors)


@dataclass(frozen=True)
class _Before:
    """The last collection of an optimizer's state."""

    unchanged: Unchanged
    keys: Mapping[int, str]
    tensors: KnownTensors
    params: list[list[str]]
    state: dict[str, _Slots]
    extra: Json


def _dependencies(optimizer: torch.optim.Optimizer) -> Unchanged | None:
    """Return what an optimizer's state_dict() depends on, besides the values in its parameter groups.

    None where the optimizer overrides state_dict(), or holds more than plain tensors and constants.
    """
    if (
        type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
        or "state_dict" in vars(optimizer)
        or optimizer._optimizer_state_dict_pre_hooks
        or optimizer._optimizer_state_dict_post_hooks
    ):
        return None
    values = [value for slots in optimizer.state.values() for value in slots.values()]
    tensors = [value for value in values if isinstance(value, Tensor)]
    others = [value for value in values if not isinstance(value, Tensor)]
    if any(map(is_sharded, tensors)) or any(type(value) not in _CONSTANTS for value in others):
        return None

    def containers() -> Containers:
        hooks = optimizer._optimizer_state_dict_pre_hooks, optimizer._optimizer_state_dict_post_hooks
        groups = optimizer.param_groups
        return [*hooks, optimizer.state, *optimizer.state.values()], [groups, *(group["params"] for group in groups)]

    return Unchanged(containers, tensors)


class OptimizerPart:
    """A torch.optim.Optimizer. A parameter's label is its key in an attached module, or else its position."""

    kind = "optimizer"

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, names: Names) -> None:
        self.name = name
        self.optimizer = optimizer
        self._names = names
        self._replicable = name in names.said or updates_all_parameters(optimizer)
        self._known: dict[str, _Described] = {}
        self._state_tree: dict[str, _Slots] = {}
        self._before: _Before | None = None

    def _labelled(self, groups: list[dict[str, Any]]) -> dict[Any, tuple[str, Tensor]]:
        """Map each parameter's id in state_dict() to its label and the parameter."""
        names = [name for group in groups for name in group["params"]]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        keys = self._names.keys
        return {
            name: (keys.get(id(parameter)) or str(position), parameter)
            for position, (name, parameter) in enumerate(zip(names, parameters, strict=True))
        }

    # --- collecting ----------------------------------------------------------------------------------------

    def collect(self, collector: Collector) -> dict[str, Json]:
        """Put the optimizer's tensors into the collector; return everything else to save. Raises StateError."""
        before = self._before
        if (
            before is not None
            and before.keys == self._names.keys
            and before.unchanged.holds()
            and collector.add_unchanged(before.tensors)
        ):
            groups = self._collect_groups(self.optimizer.param_groups, before.params, collector)
            return {"state": before.state, "param_groups": groups, "extra": before.extra}
        state = self.optimizer.state_dict()
        labelled = self._labelled(state["param_groups"])
        mark = collector.mark()
        slots = self._collect_state(state["state"], labelled, collector)
        tensors = collector.since(mark)
        params = [[labelled[name][0] for name in group["params"]] for group in state["param_groups"]]
        more = {key: value for key, value in state.items() if key not in ("state", "param_groups")}
        more["state"] = {name: value for name, value in state["state"].items() if name not in labelled}
        extra = encode(more, (self.name,), collector.put)
        unchanged = None if more != {"state": {}} else _dependencies(self.optimizer)
        if unchanged is None:
            self._before = None
        else:
            self._before = _Before(
                unchanged=unchanged, keys=self._names.keys, tensors=tensors, params=params, state=slots, extra=extra
            )
        groups = self._collect_groups(state["param_groups"], params, collector)
        return {"state": slots, "param_groups": groups, "extra": extra}

    def _collect_groups(
        self, groups: list[dict[str, Any]], params: list[list[str]], collector: Collector
    ) -> list[dict[str, Json]]:
        """Return the parameter groups, encoded anew at every step because schedulers change their values."""
        found = []
        for index, (group, labels) in enumerate(zip(groups, params, strict=True)):
            plain = {key: value for key, value in group.items() if key != "params"}
            tree = encode(plain, (self.name, "param_groups", index), collector.put)
            found.append({"group": tree, "params": labels})
        return found

    def _collect_state(
        self, state: Mapping[Any, Any], labelled: Mapping[Any, tuple[str, Tensor]], collector: Collector
    ) -> dict[str, _Slots]:
        """Return the parameters' states by label; the same object as last time if only values have changed."""
        trees = {}
        for name, slots in state.items():
            if name in labelled:
                label, parameter = labelled[name]
                trees[label] = self._collect_slots(label, parameter, slots=slots, collector=collector)
        known = self._state_tree
        if len(known) != len(trees) or any(known.get(label) is not tree for label, tree in trees.items()):
            self._state_tree = trees
        return self._state_tree

    def _collect_slots(self, label: str, parameter: Tensor, slots: Mapping[str, Any], collector: Collector) -> _Slots:
        known = self._known.get(label)
        if known is None or not known.fits(parameter, slots):
            known = self._known[label] = self._describe(label, parameter, slots)
        for tensor_slot in known.tensors:
            collector.put(
                (self.name, label, tensor_slot.name),
                slots[tensor_slot.name],
                owner=tensor_slot.owner,
                settled=True,
                key=tensor_slot.key,
            )
        if len(known.tensors) == len(slots):
            return known.tree
        tree = dict(slots)
        tree.update(known.tree)
        for slot, value in slots.items():
            if slot not in known.tree:  # not a tensor: it may change at every step
                owner = self._slot_owner(label, parameter, slot)

                def put(path: Path, tensor: Tensor, owner: Owner | None = owner) -> str:
                    return collector.put(path, tensor, owner=owner, settled=True)

                tree[slot] = encode(value, (self.name, "state", label, slot), put)
        return tree

    def _describe(self, label: str, parameter: Tensor, slots: Mapping[str, Any]) -> _Described:
        """Describe the slots of a parameter's state.

        A tensor of the parameter's shape lies on the parameter's device, so its tag names no device of its own.
        """
        prefix = f"{self.name}.state.{label}."
        tensors: list[_TensorSlot] = []
        tree: _Slots = {}
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                key = prefix + str(slot).replace("@", "@@")
                owner = self._slot_owner(label, parameter, slot)
                tensors.append(_TensorSlot(name=slot, key=key, owner=owner, device=value.device))
                device = _CPU if value.shape == parameter.shape else value.device
                tree[slot] = tag_tensor(key, device)
        return _Described(parameter=parameter, names=tuple(slots), tensors=tensors, tree=tree)

    def _slot_owner(self, label: str, parameter: Tensor, slot: str) -> Owner | None:
        if not self._replicable:
            return None
        key = label if id(parameter) in self._names.keys else loose_key(self.name, label)
        owner = self._names.owner(parameter, key)
        return None if owner is None else owner_of_slot(owner, str(slot), self._names.places(owner.group))

    # --- restoring -----------------------------------------------------------------------------------------

    def plan(self, tree: Mapping[str, Json], saved: Lookup) -> Loader:
        """Check that what was saved fits, changing nothing; return a function that loads it. Raises StateError."""
        groups = self.optimizer.state_dict()["param_groups"]
        labelled = self._labelled(groups)
        later = self._later_groups(tree["param_groups"][len(groups) :])
        if len(groups) + len(later) != len(tree["param_groups"]):
            raise StateError(
                f"cannot restore optimizer `{self.name}`: it has {len(groups)} parameter groups, "
                f"{len(tree['param_groups'])} were saved"
            )
        for index, (group, entry) in enumerate(zip(groups, tree["param_groups"], strict=False)):
            live = [labelled[name][0] for name in group["params"]]
            check_names(f"parameter group {index} of optimizer `{self.name}`", live, entry["params"])
        for key in tensor_keys([tree["state"], tree["param_groups"], tree["extra"]]):
            saved.check(key, None)
        return lambda: self._load(tree, later, saved)

    def _later_groups(self, entries: Sequence[Mapping[str, Json]]) -> list[list[nn.Parameter]]:
        """Return the parameters of groups that the saved run added after attach(); empty if one of them is unknown."""
        if not entries:
            return []
        known = self._names.parameters()
        if any(label not in known for entry in entries for label in entry["params"]):
            return []
        return [[known[label] for label in entry["params"]] for entry in entries]

    def _load(self, tree: Mapping[str, Json], later: Sequence[list[nn.Parameter]], saved: Lookup) -> None:
        for parameters in later:
            self.optimizer.add_param_group({"params": parameters})
        groups = self.optimizer.state_dict()["param_groups"]
        names = {label: (name, parameter) for name, (label, parameter) in self._labelled(groups).items()}
        extra = decode(tree["extra"], saved.get)
        state: dict[Any, Any] = extra.pop("state")
        read = _read_state(tree["state"], names, saved)

        for label, slots in tree["state"].items():
            state[names[label][0]] = decode(slots, lambda key, _: read[key])
        new_groups = [
            {**decode(entry["group"], saved.get), "params": group["params"]}
            for group, entry in zip(groups, tree["param_groups"], strict=True)
        ]
        self.optimizer.load_state_dict({**extra, "state": state, "param_groups": new_groups})
        for name, parameter in names.values():
            _undo_casts(self.optimizer.state.get(parameter, {}), state.get(name, {}))


def tensor_keys(tree: Json) -> list[str]:
    """Return the keys of all tensors that an encoded tree names."""
    return [key for key, _ in _tensors_in(tree)]


def _tensors_in(tree: Json) -> list[tuple[str, str]]:
    """Return key and device of each tensor that an encoded tree names."""
    found: list[tuple[str, str]] = []

    def note(key: str, device: str) -> Tensor:
        found.append((key, device))
        return torch.empty(0, device="cpu")

    decode(tree, note)
    return found


def _read_state(
    tree: Mapping[str, _Slots], names: Mapping[str, tuple[Any, Tensor]], saved: Lookup
) -> dict[str, Tensor]:
    """Read the state tensors, all at once: an optimizer may have thousands, and most of them are single numbers.

    Those of their parameter's shape come onto its device, and are sharded like the parameter; others come to the device
    on which they were saved.
    """
    wanted: dict[str, Tensor] = {}
    for label, slots in tree.items():
        parameter = names[label][1]
        for key, device in _tensors_in(slots):
            _, shape = saved.info(key)
            if shape and shape == tuple(parameter.shape):
                wanted[key] = saved.allocate(key, parameter.device.type, like=parameter)
            else:
                wanted[key] = saved.allocate(key, device)
    saved.fill(wanted)
    return wanted


def _undo_casts(live: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Replace the values that Optimizer.load_state_dict has cast to the parameter's dtype by the saved ones."""
    for slot, value in saved.items():
        if slot in live:
            live[slot] = _without_cast(live[slot], value)


def _without_cast(now: Any, saved: Any) -> Any:
    if isinstance(saved, Tensor):
        return saved.to(now.device) if isinstance(now, Tensor) and now.dtype != saved.dtype else now
    if isinstance(saved, dict) and isinstance(now, dict):
        return type(saved)((key, _without_cast(now[key], value)) for key, value in saved.items())
    if isinstance(saved, (list, tuple)) and isinstance(now, (list, tuple)):
        return type(saved)(_without_cast(current, value) for current, value in zip(now, saved, strict=True))
    return now
