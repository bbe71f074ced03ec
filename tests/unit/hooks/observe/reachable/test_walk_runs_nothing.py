"""A walk runs no property, no `__getattr__`, no iterator and no metaclass of anybody's, and imports nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.support.loop_lives import LoopSurveyor
from tests.support.loops import reported_names
from torch import nn


class RanError(Exception):
    """Foreign code ran."""


def runs(*args: Any, **kwargs: Any) -> Any:
    raise RanError


class Lazy:
    """Everything of it raises, but for what the loop does with it."""

    def __init__(self) -> None:
        object.__getattribute__(self, "__dict__")["count"] = 0

    __getattr__ = __getattribute__ = __iter__ = __len__ = __bool__ = __eq__ = __repr__ = __str__ = runs  # type: ignore[assignment]
    __hash__ = __contains__ = __getitem__ = keys = items = values = runs  # type: ignore[assignment]
    lazily = property(runs)


class Meta(type):
    """Classes of this kind answer nothing."""

    __getattr__ = __iter__ = __len__ = __bool__ = runs


class OfMeta(metaclass=Meta):
    """One of them."""


class Mapping(dict[str, int]):
    """As transformers' MODEL_MAPPING: going through it imports a thousand modules."""

    __iter__ = __getitem__ = __len__ = __contains__ = keys = items = values = runs  # type: ignore[assignment]


class Series(list[int]):
    __iter__ = __getitem__ = __len__ = runs  # type: ignore[assignment]


class Dicted:
    """Its attributes are behind a property."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RanError


class LazyModule(ModuleType):
    __getattr__ = runs


class Block(nn.Module):
    """A module with a property, whose attributes raise."""

    made = property(runs)
    __getattr__ = runs

    def modules(self) -> Any:
        raise RanError

    parameters = buffers = named_modules = named_parameters = children = modules  # type: ignore[assignment]


def test_nothing_runs(capfd: pytest.CaptureFixture[str]) -> None:
    def loop(boundary: Callable[[], None]) -> None:
        lazy, of_meta, mapping, series, dicted = Lazy(), OfMeta, Mapping(a=1), Series([1]), Dicted()
        module, holder, block = LazyModule("lazy"), {"a": [Lazy()]}, Block()
        named = {"deep": (Lazy(), mapping)}
        for step in range(3):
            boundary()
            object.__getattribute__(lazy, "__dict__")["count"] = step
            dict.__setitem__(mapping, "a", step)
            list.append(series, step)
            str(type(of_meta)), id(dicted), id(module), id(holder), id(block), id(named)

    before = set(sys.modules)
    model = nn.Sequential(nn.Linear(2, 2), Block())
    loop(LoopSurveyor({"model": model}).boundary)
    said = capfd.readouterr().err
    assert "cannot look" not in said
    assert reported_names(said) == ["lazy.count", "mapping", "series"]
    assert set(sys.modules) == before


def test_a_walk_takes_no_step_of_an_iterator(capfd: pytest.CaptureFixture[str]) -> None:
    taken: list[int] = []

    def read() -> Iterator[int]:
        for number in range(9):
            taken.append(number)
            yield number

    def loop(boundary: Callable[[], None]) -> None:
        batches, mapped, listed = read(), map(float, read()), iter([1, 2, 3])
        for _ in range(3):
            boundary()
            str((batches, mapped, listed))

    loop(LoopSurveyor({}).boundary)
    assert taken == []
    assert torch.is_grad_enabled()
