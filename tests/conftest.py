"""Fixtures all tests share, and the check that no test leaves anything behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import leftovers
from tests.support.harness import FtJob
from tests.support.undisturbed import tiny_job
from tests.support.waiting import wait_for

# A shell, or nohup, starts what runs in the background with these ignored; what the tests start shall not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Property tests: a few examples, the same in every run of `make test`, so that a failure is never an accident of one
# run; many and new ones in `make sweep`. No deadline: the machine may be busy.
settings.register_profile("test", deadline=None, max_examples=25, derandomize=True, database=None)
settings.register_profile("sweep", deadline=None, max_examples=2000, database=None, print_blob=True)
settings.load_profile("test")  # pytest's --hypothesis-profile comes after this and wins


def pytest_configure() -> None:
    leftovers.set_mark()
    gc.disable()  # next to nothing of what is made while tests are collected is garbage


def pytest_collection_finish() -> None:
    """Keep what was collected away from the garbage collector, and let torch compute in one thread.

    Some millions of objects last as long as pytest. Without this each attach() in pytest's process, which looks for
    DistributedDataParallel among all objects that the collector knows, takes half a second more.

    Threads of several processes on few cores wait for each other, spinning: a batch_norm of 40 numbers takes 0.2 s.
    """
    gc.freeze()
    gc.enable()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Jobs of tests stand in no list of the user's jobs: see history/job_index.py."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up first and torn down last: no process and no file in memory outlives a test and its fixtures."""
    yield
    if "unit" in request.path.parts:  # they start no process: test_house.py sees to it
        return
    if found := leftovers.processes():
        wait_for(lambda: not leftovers.processes(), f"the end of {found}", 10.0)
    assert leftovers.files() == []


@pytest.fixture
def job(tmp_path: Path) -> Iterator[FtJob]:
    """A job in a directory of its own; what a failing test leaves behind is removed."""
    job = FtJob(tmp_path)
    yield job
    job.dispose()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on tmpfs."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix=f"ftlaunch-test-{leftovers.mark()}"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> FtJob:
    """The tiny job, two ranks, 30 steps, undisturbed: what every disturbed run must end as."""
    return tiny_job(tmp_path_factory, ranks=2)
