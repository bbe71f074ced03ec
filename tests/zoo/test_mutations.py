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
    """Taken out: without `RankState.find_restored_otherwise` altered parameters are another run's, and SILENT."""
    command = [sys.executable, "-m", "scripts.mutations", "--count", "16", "--seed", "1", "--shapes", "plain"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert sum(found.values()) == 16
    assert found["verified"] >= 8, done.stdout
    assert found["SILENT"] == found["false alarm"] == 0


@pytest.mark.slow
def test_nobody_is_silent_about_any_shape() -> None:
    """A thousand mutations over all shapes that are exact: see `make mutations`."""
    command = [sys.executable, "-m", "scripts.mutations", "--count", "1000", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3 * 3600, check=False)
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert sum(found.values()) == 1000
    assert found["unsampled"] <= 10, "of few shapes only a part of the values is sampled"
    assert found["SILENT"] == found["false alarm"] == 0, done.stdout[-10000:]
