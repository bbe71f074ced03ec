"""Fixtures of the tests with a real Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.prometheus import Prometheus


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Starts servers that scrape the given addresses."""
    running: list[Prometheus] = []

    def start(*urls: str) -> Prometheus:
        running.append(Prometheus(tmp_path / f"prometheus_{len(running)}", *urls))
        return running[-1]

    yield start
    for server in running:
        server.close()
