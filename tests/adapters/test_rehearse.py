"""Scripts that know nothing of the hooks survive `ftctl rehearse`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import JOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

SCRIPTS = {
    "transformers": ("hf.py", "out", "plain", "plain=1", "max_steps=5000", "rows=40", "nap=0.1"),
    "lightning": ("pl.py", "out", "zero+slow+noise"),
}


@pytest.mark.exact("Transformers", "an unmodified script")
@pytest.mark.exact("Lightning", "an unmodified script")
@pytest.mark.parametrize("framework", SCRIPTS)
def test_an_unmodified_script_survives_a_rehearsal(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed (make frameworks)")
    script, *words = SCRIPTS[framework]
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "rehearse", "--json", "--steps", "12", "--auto-attach"]
    command += ["--nproc-per-node", "2", str(JOBS / script), *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["runs"]
    assert {"undisturbed", "a rank is killed", "a rank is frozen", "the job is preempted", "storage is full"} <= {
        run["fault"] for run in found
    }
    assert all(run["good"] for run in found), found
