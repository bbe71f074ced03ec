"""Tensors and numbers that a module holds as plain attributes: its state_dict() does not know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import ReferenceType, ref

from torch import Tensor, nn

_NUMBERS = (bool, int, float, complex, str)
_Look = tuple[ReferenceType[Tensor], int] | str  # a number by its repr: NaN is no other than NaN


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
        now = {name: _look(value) for name, value in _values(modules)}
        if self._first is None:
            self._first = now
        first = self._first
        return [name for name, look in now.items() if not _is(look, first.get(name))]


def _look(value: Any) -> _Look:
    if isinstance(value, Tensor):
        return ref(value), 0 if value.is_inference() else value._version
    return repr(value)


def _is(now: _Look, first: _Look | None) -> bool:
    if isinstance(now, tuple) and isinstance(first, tuple):
        return first[0]() is now[0]() and first[1] == now[1]
    return now == first


def _values(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, Any]]:
    """Without what spectral_norm and weight_norm make anew before every forward pass, and without `training`.

    Numbers of torch's own modules are left out (DistributedDataParallel counts its passes), and those of a module that
    says itself what is saved of it.
    """
    for path, module in modules:
        made = {getattr(hook, "name", None) for hook in module._forward_pre_hooks.values()} | {"training"}
        kind = type(module)
        counts = not kind.__module__.startswith("torch.") and kind.get_extra_state is nn.Module.get_extra_state
        for name, value in vars(module).items():
            wanted = isinstance(value, Tensor) or (counts and type(value) in _NUMBERS)
            if wanted and name not in made:
                yield f"{path}.{name}".lstrip("."), value
