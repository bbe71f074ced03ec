"""What is altered in a snapshot in memory is told: verified as different, named or refused (scripts/mutations)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_nobody_is_silent_about_a_shape_whose_snapshot_was_altered() -> None:
    """Taken out: without `StepProof._difference_of_restored` altered parameters are another run's, and SILENT."""
    command = [sys.executable, "-m", "scripts.mutations", "--count", "16", "--seed", "1", "--shapes", "plain"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert sum(found.values()) == 16
    assert found["verified"] >= 8, done.stdout
    assert found["SILENT"] == found["false alarm"] == 0


_MOST_SILENT = 0.08
"""of all mutations: what the steps that are made again do not use shows nothing"""


@pytest.mark.slow
def test_few_are_silent_about_any_shape() -> None:
    """A thousand mutations over all shapes that are exact: see `make mutations`.

    Silent are, up to now: Adam's averages of experts that no sample of these steps goes to, and averages of the weights
    that only the end reads.
    """
    command = [sys.executable, "-m", "scripts.mutations", "--count", "1000", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3 * 3600, check=False)
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert sum(found.values()) == 1000
    assert found["SILENT"] <= _MOST_SILENT * sum(found.values()), done.stdout[-10000:]
    assert found["false alarm"] == 0, done.stdout[-10000:]
