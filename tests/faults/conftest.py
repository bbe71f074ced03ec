"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.notified import Hook


@pytest.fixture
def hooks() -> Iterator[list[Hook]]:
    """Webhooks that the test puts in are closed at its end."""
    made: list[Hook] = []
    yield made
    for hook in made:
        hook.close()
