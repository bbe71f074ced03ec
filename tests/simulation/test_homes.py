"""What a simulation keeps in memory is removed, also where its process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.simulation import homes

PROGRAM = """\
import sys
from tests.support.simulation.homes import home
(home() / "left").touch()
print(home(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that simulates, and its directory."""
    command = [sys.executable, "-c", PROGRAM]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_the_directory_of_a_process_that_lives_is_left(other: tuple[subprocess.Popen[str], Path]) -> None:
    process, path = other
    homes.remove_abandoned()
    assert (path / "left").exists()
    process.communicate("")
    assert not path.exists(), "a process that ends well removes it"


def test_that_of_a_killed_one_is_removed(other: tuple[subprocess.Popen[str], Path]) -> None:
    """Taken out: without remove_abandoned it stays for ever."""
    process, path = other
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (path / "left").exists()
    homes.remove_abandoned()
    assert not path.exists()
