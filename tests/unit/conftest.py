"""Fixtures the unit tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on tmpfs."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="ftlaunch-test-"))
    yield directory
    shutil.rmtree(directory)
