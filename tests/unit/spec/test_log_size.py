"""`log_max_size`."""

from __future__ import annotations

import pytest

from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.keys import SETTINGS


@pytest.mark.parametrize(("text", "size"), [("off", None), ("100MB", 100_000_000), ("1GiB", 1 << 30), ("1MB", 10**6)])
def test_read_and_shown(text: str, size: int | None) -> None:
    key = SETTINGS["log_max_size"]
    assert key.read(text) == size
    assert key.read(key.show(size)) == size


@pytest.mark.parametrize("text", ["999KB", "100", "x", 5, True, None, "-1MB", "100MB/s"])
def test_refused(text: object) -> None:
    with pytest.raises(RefusedError):
        SETTINGS["log_max_size"].read(text)
