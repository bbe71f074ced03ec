"""Undisturbed jobs, each run once, and skipping where MindSpore is not installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support import mindspore_jobs


@pytest.fixture(autouse=True, scope="session")
def mindspore() -> None:
    if not mindspore_jobs.PYTHON.exists():
        pytest.skip("MindSpore is not installed in .venv-mindspore (make mindspore)")


@pytest.fixture(scope="session")
def undisturbed(mindspore: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, object]]:
    """What a job of a style and one rank leaves."""
    known: dict[str, dict[str, object]] = {}

    def run(style: str) -> dict[str, object]:
        if style not in known:
            (known[style],) = mindspore_jobs.undisturbed(tmp_path_factory.mktemp("undisturbed"), style)
        return known[style]

    return run


@pytest.fixture(scope="session")
def two_undisturbed(mindspore: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[object]]:
    """What each of two ranks leaves, started by msrun."""
    known: dict[str, list[object]] = {}

    def run(style: str) -> list[object]:
        if style not in known:
            known[style] = [*mindspore_jobs.undisturbed(tmp_path_factory.mktemp("two"), style, 2)]
        return known[style]

    return run
