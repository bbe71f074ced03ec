"""Random SIGKILLs around a checkpoint store: scripts/chaos/stores.py, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.buckets import needs_server

pytestmark = needs_server

CHAOS = Path(__file__).parents[2] / "scripts/chaos/stores.py"


def assert_sound(tmp_path: Path, kills: int, seed: int) -> dict[str, Any]:
    """Runs it; fails when a step was torn, a commit lost, or anything left behind."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(CHAOS), "--kills", str(kills), "--seed", str(seed), "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(figures.read_text())
    assert found["problems"] == []
    assert sum(found["kills"].values()) >= kills
    assert found["verified"] > 0, "steps were in the bucket, and were read whole"
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_some_random_kills_tear_and_lose_nothing(tmp_path: Path) -> None:
    assert_sound(tmp_path, 8, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_kills_of_every_kind(tmp_path: Path) -> None:
    found = assert_sound(tmp_path, 100, seed=1)
    assert len(found["kills"]) == 6, "each kind was killed"
    assert found["brought"] > 0
    # Not asserted of few kills: what a job has stored is counted from its journal, which a lost machine takes along.
    assert found["stored"] > 0
