"""Plugs the simulated accelerator in for each test of this folder. Skips them where it cannot be built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accelerator import build, simulated

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def accelerator() -> Iterator[None]:
    """Two devices of type `sim`, without delays."""
    if (tool := build.missing_tool()) is not None:
        pytest.skip(
            f"there is no {tool}, which builds the simulated accelerator: apt-get install g++, pip install ninja"
        )
    with simulated.plugged_in():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a new torch waits until the extension is built, by whichever process has begun with it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))
