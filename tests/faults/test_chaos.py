"""Random SIGKILLs over whole jobs: scripts/chaos, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHAOS = Path(__file__).parents[2] / "scripts/chaos"


def rampage(tmp_path: Path, kills: int, *jobs: str) -> dict[str, Any]:
    """Runs it; fails when a restore was torn, empty or mixed, or anything was left behind."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(CHAOS), "--kills", str(kills), "--jobs", *jobs, "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(figures.read_text())
    assert found["problems"] == []
    assert sum(found["kills"].values()) >= kills
    assert found["ends"]
    return found


@pytest.mark.slow
def test_some_random_kills_leave_the_undisturbed_end(tmp_path: Path) -> None:
    found = rampage(tmp_path, 6, "loose-small")
    assert found["audited"] > 0, "a checkpoint was verified, loaded and compared"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_kills_of_every_kind_of_job(tmp_path: Path) -> None:
    kinds = "ddp-small", "sharded-small", "loose-small", "loose-large", "sharded-large", "ddp-large"
    found = rampage(tmp_path, 300, *kinds)
    assert found["restores"]["memory"] > 0
    assert found["restores"]["storage"] > 0
    assert set(found["lost"]["memory"]) <= {"0", "1"}
