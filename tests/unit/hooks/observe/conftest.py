"""Fixtures for tests of what is told of variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.loops import reported_names

from ftlaunch_contract.pages.page import Page, create_page


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    create_page(tmp_path / "page")
    page = Page(tmp_path / "page")
    page.begin(0, 1, 1)
    yield page
    page.close()


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str]) -> Callable[[Any, dict[str, Any]], list[str]]:
    """Names of which a loop is told where nothing is kept. It gets a function that it calls at each boundary."""
    from tests.support.loop_lives import LoopSurveyor  # needs torch, which not all tests here do (make check-pythons)

    def run(loop: Callable[[Callable[[], None]], None], objects: dict[str, Any]) -> list[str]:
        loop(LoopSurveyor(objects).boundary)
        names = reported_names(capfd.readouterr().err)
        assert len(set(names)) == len(names), "each is told of once"
        return names

    return run
