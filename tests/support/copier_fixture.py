"""The fixture that makes nodes with copiers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.copiers import CopierNode

Make = Callable[..., CopierNode]


@pytest.fixture
def make(memory: Path) -> Iterator[Make]:
    """Yield a function that makes a node from its number, its ranks and further arguments of `CopierNode`."""
    with ExitStack() as stack:

        def node(number: int, ranks: range, *, place: Path = memory, **more: int | str) -> CopierNode:
            made = CopierNode(number, place, ranks, **more)  # type: ignore[arg-type]
            stack.callback(made.close)
            return made

        yield node
