"""The examples of the guides, as they stand there: a rank is killed, and they end as undisturbed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.harness import FtJob

pytestmark = pytest.mark.long

GUIDES = Path(__file__).parents[2] / "docs/guide"
# On a processor DeepSpeed would compile C++ for a minute.
BEFORE = {"deepspeed.md": 'import deepspeed\ndeepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False\n'}
KILLED_AT = {("trainings.md", 0): 5_100, ("trainings.md", 1): 2_500}  # in the second one, and in the third
DIGEST = """
import hashlib, pathlib
held = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
pathlib.Path("digest").write_text(hashlib.sha256(held).hexdigest())
"""


@pytest.mark.parametrize(
    ("guide", "number", "package"),
    [
        ("adapters.md", 0, "torch"),
        pytest.param("trainings.md", 0, "torch", marks=pytest.mark.slow),
        pytest.param("trainings.md", 1, "torch", marks=pytest.mark.slow),
        pytest.param("lightning.md", 0, "lightning.pytorch", marks=pytest.mark.slow),
        pytest.param("lightning.md", 1, "lightning.fabric", marks=pytest.mark.slow),
        pytest.param("accelerate.md", 0, "accelerate", marks=pytest.mark.slow),
        pytest.param("deepspeed.md", 0, "deepspeed", marks=pytest.mark.slow),
    ],
)
def test_the_example_goes_on(guide: str, number: int, package: str, job: FtJob) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed (make frameworks)")
    examples = re.findall(r"^```python\n(.*?)^```", (GUIDES / guide).read_text(), re.DOTALL | re.MULTILINE)
    script = job.home / "example.py"
    script.write_text(BEFORE.get(guide, "") + examples[number] + DIGEST)
    ends = []
    for kill in (False, True):
        job.run_dir = job.home / f"run_{kill}"
        job.start("--warm", "--preload", package, script=script, args=(), ranks=1)
        if kill:
            job.wait_step(KILLED_AT.get((guide, number), 20))
            os.kill(job.pids()[0], signal.SIGKILL)
        assert job.wait() == 0, job.stderr
        ends.append((job.home / "digest").read_text())
        for file in (job.home / "digest", *job.home.glob("fold*.pt")):
            file.unlink()
    assert [incident["kind"] for incident in job.events("incident")] == ["killed"]
    assert ends[0] == ends[1]
    job.assert_clean()
