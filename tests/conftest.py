"""Fixtures all tests share."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import FtJob

# A shell starts what runs in the background with these ignored; what the tests start shall not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[FtJob]:
    """A job in a directory of its own; what a failing test leaves behind is removed."""
    job = FtJob(tmp_path)
    yield job
    job.dispose()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on tmpfs."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="ftlaunch-test-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> FtJob:
    """The tiny job, two ranks, 30 steps, undisturbed: what every disturbed run must end as."""
    job = FtJob(tmp_path_factory.mktemp("calm"))
    try:
        job.start()
        assert job.wait() == 0, job.stderr
    finally:
        job.dispose()
    return job
