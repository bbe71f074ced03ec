"""The structure that a script has when it attaches, and a check that the script still has this structure.

A resumed script builds its objects anew and attaches them before it knows at which step it goes on. A module that has
grown since, or a parameter group that cannot be added again, could not be restored. Such a change is refused when it
happens, because at the resume it is too late.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ftlaunch_contract import shared_keys
from ftlaunch_contract.shared_keys import own_key
from ftlaunch_hooks.state.collector import Collected
from ftlaunch_hooks.state.parts import Names, list_names
from ftlaunch_hooks.tensors.json_codec import StateError


class Structure:
    """The modules' tensors and the optimizers' parameter groups at the moment of attach()."""

    def __init__(
        self, collected: Collected, optimizers: Mapping[str, torch.optim.Optimizer], names: Names, rank: int
    ) -> None:
        self._own = own_key("", rank)
        self._shapes = self._shapes_of(collected)
        self._items = collected.items
        self._optimizers = optimizers
        self._names = names
        self._groups = {name: _groups(optimizer) for name, optimizer in optimizers.items()}

    def check(self, collected: Collected) -> None:
        """Check a new collection.

        Raises:
            StateError: a change could not be restored into a script that has just attached.
        """
        if collected.items is not self._items:
            self._items = collected.items
            self._check_modules(self._shapes_of(collected))
        for name, optimizer in self._optimizers.items():
            self._check_groups(name, optimizer)

    def _shapes_of(self, collected: Collected) -> dict[str, tuple[int, ...]]:
        """Return the shapes of modules' tensors by key without ranks: a rank may begin to save a tensor as its own."""
        return {self._plain(item.key): item.whole for item in collected.items if item.group == "model"}

    def _plain(self, key: str) -> str:
        shared = shared_keys.parse(key)
        return key.removesuffix(self._own) if shared is None else shared[0]

    def _check_modules(self, now: Mapping[str, tuple[int, ...]]) -> None:
        before = self._shapes
        why = "a script that resumes does not have it when it attaches"
        if new := now.keys() - before.keys():
            raise StateError(f"cannot save {list_names(new)}, which is new since attach(): {why}")
        if gone := before.keys() - now.keys():
            raise StateError(f"cannot save a state without {list_names(gone)}, which was there at attach()")
        parameters = self._names.parameters()  # a buffer may have another shape, which a restore gives back
        if other := [key for key, shape in now.items() if shape != before[key] and key in parameters]:
            shapes = f"{before[other[0]]} at attach(), {now[other[0]]} now"
            raise StateError(f"cannot save {list_names(other)}, whose shape has changed ({shapes}): {why}")

    def _check_groups(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        before = self._groups[name]
        now = _groups(optimizer)
        if now == before:
            return
        if now[: len(before)] != before:
            raise StateError(
                f"cannot save optimizer `{name}`: a parameter group has other parameters than at attach(), which a"
                " script that resumes does not have; add_param_group() may add another group"
            )
        later = [parameter for group in optimizer.param_groups[len(before) :] for parameter in group["params"]]
        if any(id(parameter) not in self._names.keys for parameter in later):
            raise StateError(
                f"cannot save optimizer `{name}`: a parameter group was added after attach() with a parameter of no"
                " attached module; attach that module, too"
            )
        self._groups[name] = now


def _groups(optimizer: torch.optim.Optimizer) -> list[list[int]]:
    """Return the ids of the parameters in each parameter group."""
    return [list(map(id, group["params"])) for group in optimizer.param_groups]
