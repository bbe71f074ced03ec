"""SIGKILL after each tensor of a snapshot: what all ranks had before is there, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.harness import JOBS

TENSORS = 7


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_is_copied_already_the_step_before_is_whole(memory: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(JOBS / "killed_in_copy.py"), str(memory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    *deaths, (_, last) = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(deaths) > TENSORS, "killed before the first, after each, and before the step was committed"
    assert {step for _, step in deaths} == {11}
    assert last == 12, "and once nobody was killed"
