"""The guide's example runs as it stands, and is two lines longer than without us."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from tests.adapters.kit import OFFLINE
from tests.support.harness import FtJob
from tests.support.packages import require

require("transformers", reason="Transformers is not installed (make frameworks)")
require("accelerate", reason="Accelerate is not installed (make frameworks)")
GUIDE = Path(__file__).parents[3] / "docs/guide/transformers.md"


@pytest.mark.slow
def test_the_example_is_killed_and_goes_on(job: FtJob) -> None:
    found = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    assert sum(bool(re.search(r"\bft(launch_hooks)?\b", line)) for line in found[1].splitlines()) <= 3
    script = job.home / "train.py"
    script.write_text(found[1])
    job.start(script=script, args=(), ranks=2, env=OFFLINE)
    job.wait_step(20)
    os.kill(job.pids()[1], signal.SIGKILL)
    assert job.wait() == 0, job.stderr
    (incident,) = job.events("incident")
    assert incident["kind"] == "killed"
    resumed = job.events("resumed")[-1]
    assert resumed["step"] >= 20
    assert "saved step 300 " in job.stderr + job.stdout
    job.assert_clean()
