"""A system call of the supervisor's that fails costs one line: a slice of `make anomalies`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scripts.anomalies.run import Anomaly, run

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.long,
]


@pytest.mark.parametrize("number", [1, 9, 25])
@pytest.mark.parametrize(("call", "error"), [("openat", "EMFILE"), ("newfstatat", "EIO")])
def test_a_failed_call_costs_one_line(call: str, error: str, number: int, tmp_path: Path) -> None:
    """Taken out (no bulkheads): ten of ten such jobs ended with exit code 70."""
    outcome = run(Anomaly("supervisor", call, error, number), tmp_path)
    assert outcome.fired
    assert not outcome.wrong, outcome.said
