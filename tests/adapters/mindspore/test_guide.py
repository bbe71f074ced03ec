"""The example of the guide, as it stands there: its rank is killed, and it ends as undisturbed."""

from __future__ import annotations

import os
import re
import signal

import pytest
from tests.support.framework_results import logs
from tests.support.harness import FtJob
from tests.support.mindspore_jobs import PATHS, PYTHON, ROOT

pytestmark = pytest.mark.long

WAIT = """
import time
from mindspore.train import Callback

class Slow(Callback):
    def on_train_step_end(self, run_context):
        time.sleep(0.02)
"""
DIGEST = """
import hashlib, pathlib
held = b"".join(one.asnumpy().tobytes() for one in network.get_parameters())
pathlib.Path("digest").write_text(hashlib.sha256(held).hexdigest())
"""


def test_the_example_goes_on(job: FtJob) -> None:
    example = re.search(
        r"^```python\n(.*?)^```", (ROOT / "docs/guide/mindspore.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert example is not None
    script = job.home / "example.py"
    script.write_text(WAIT + example[1].replace("checkpoint])", "checkpoint, Slow()])") + DIGEST)
    job.python, ends = str(PYTHON), []
    for kill in (False, True):
        job.run_dir = job.home / f"run_{kill}"
        job.start(script=script, args=(), ranks=1, env=PATHS)
        if kill:
            job.wait_step(20)
            os.kill(job.pids()[0], signal.SIGKILL)
        assert job.wait(120) == 0, job.stderr + logs(job)
        ends.append((job.home / "digest").read_text())
        (job.home / "digest").unlink()
    assert [incident["kind"] for incident in job.events("incident")] == ["killed"]
    assert ends[0] == ends[1]
    job.assert_clean()
