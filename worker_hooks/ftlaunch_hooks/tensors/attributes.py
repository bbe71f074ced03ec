"""Tensors that a module holds as plain attributes: its state_dict() does not know them, and they are not saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import ReferenceType, ref

from torch import Tensor, nn

_Look = tuple[ReferenceType[Tensor], int]


class TensorAttributes:
    """Of one attached module: which of them training has changed. To find that out costs milliseconds a look."""

    def __init__(self) -> None:
        self._first: dict[str, _Look] | None = None
        self._asked = 0

    def changed(self, modules: Iterable[tuple[str, nn.Module]]) -> list[str]:
        """Names of those that are others than at the first call; [] at calls in which it is not looked.

        It is looked at the 1st, 2nd, 4th, 8th ... call. modules: by name.
        """
        self._asked += 1
        if self._asked & (self._asked - 1):
            return []
        now = {
            name: (ref(tensor), 0 if tensor.is_inference() else tensor._version) for name, tensor in _tensors(modules)
        }
        if self._first is None:
            self._first = now
        first = self._first
        return [name for name, (tensor, version) in now.items() if not _is(tensor, version, first.get(name))]


def _is(tensor: ReferenceType[Tensor], version: int, first: _Look | None) -> bool:
    return first is not None and first[0]() is tensor() and first[1] == version


def _tensors(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor]]:
    """Without those that spectral_norm and weight_norm make anew before every forward pass."""
    for path, module in modules:
        made = {getattr(hook, "name", None) for hook in module._forward_pre_hooks.values()}
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and name not in made:
                yield f"{path}.{name}".lstrip("."), value
