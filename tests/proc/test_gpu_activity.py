"""GPU utilisation as a sign of life, against an NVML that is made for the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.nvml import FakeNvml

from ftlaunch.system.gpu_activity import Gpus
from ftlaunch.system.process_activity import Usage, is_active

ASK = """
import sys, time
from pathlib import Path
from ftlaunch.system.gpu_activity import Gpus
gpus, until = Gpus(Path("/dev/null")), time.monotonic() + 60
gpus.ask()
while not gpus.busy and time.monotonic() < until:
    time.sleep(0.01)
print(sorted(gpus.busy))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (Debian: gcc)")
def test_processes_on_a_gpu_at_work_are_found(tmp_path: Path) -> None:
    """Of two devices the second is at work."""
    nvml = FakeNvml(tmp_path / "nvml")
    nvml.list((0, 101, 5), (1, 102, 5))
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, **nvml.env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("[102]\n", "")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """All threads that are started."""
    threads: list[threading.Thread] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        threads.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return threads


def test_without_a_driver_nothing_is_asked(tmp_path: Path, begun: list[threading.Thread]) -> None:
    gpus = Gpus(tmp_path / "none")
    gpus.ask()
    assert (gpus.busy, begun) == (frozenset(), [])


def test_a_driver_that_does_not_work_is_no_error(tmp_path: Path, begun: list[threading.Thread]) -> None:
    gpus = Gpus(tmp_path)
    gpus.ask()
    (asks,) = begun
    asks.join(60)
    assert (gpus.busy, asks.is_alive()) == (frozenset(), False)


def test_a_gpu_at_work_is_a_sign_of_life() -> None:
    assert is_active(Usage(), Usage(gpu=True), 1.0)
    assert not is_active(Usage(gpu=True), Usage(), 1.0)
