"""Scripts shaped like public ones, made fault tolerant with a few lines: killed anywhere they go on bit for bit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.harness import JOBS, FtJob

SCRIPTS = JOBS / "public"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "public-scripts.md"
FAST = ("--backoff-first", "0.05s", "--backoff-max", "0.1s", "--max-restarts", "20", "--storage-interval", "2")
BY_EPOCHS = "batch:0:2:kill validation:0:0:kill end:1:0:kill batch:2:0:term batch:3:1:storage"
BY_STEPS = "batch:1:1:kill validation:{eval}:0:kill end:4:0:kill batch:5:1:term batch:{late}:0:storage"
RANKS = {"multigpu": 2}
FAULTS = {"gpt": BY_STEPS.format(eval=6, late=21), "ppo": BY_STEPS.format(eval=3, late=22)}
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "kit")
IN_CI = ("gpt",)


def _run(job: FtJob, name: str, out: Path, faults: str) -> int:
    out.mkdir(exist_ok=True)
    job.out = out
    job.start(
        *FAST,
        *("--warm", "--preload", "ftlaunch_hooks.job.attaching"),
        script=SCRIPTS / f"{name}.py",
        args=(),
        env={"PUBLIC_OUT": str(out), "PUBLIC_FAULTS": faults},
        ranks=RANKS.get(name, 1),
    )
    return job.wait()


def _losses(folder: Path) -> dict[str, dict[str, str]]:
    """By file: a batch -> its loss. One that was made twice was made alike, or this fails."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("losses_*")):
        by_batch = found.setdefault(path.name, {})
        for line in path.read_text().splitlines():
            batch, loss = line.split()
            assert by_batch.setdefault(batch, loss) == loss, f"{path.name}: {batch} was made twice, differently"
    return found


def _finals(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("final_*"))}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in IN_CI else pytest.mark.slow) for name in NAMES]
)
def test_a_script_that_is_killed_anywhere_goes_on_bit_for_bit(name: str, job: FtJob, tmp_path: Path) -> None:
    calm, broken, faults = tmp_path / "calm", tmp_path / "broken", FAULTS.get(name, BY_EPOCHS)
    assert _run(job, name, calm, "") == 0, job.stderr
    job.job_id += "-broken"
    job.run_dir = tmp_path / "run_broken"
    assert _run(job, name, broken, faults) == 75, job.stderr
    assert _run(job, name, broken, faults) == 0, job.stderr
    assert len(list(broken.glob("fired_*"))) == len(faults.split())
    assert _losses(broken) == _losses(calm)
    assert _finals(broken) == _finals(calm) != {}
    said = job.stderr + "".join(path.read_text() for path in (job.run_dir / "logs").rglob("*.log"))
    assert "not exact" not in said, said


def test_the_guide_counts_the_lines_that_are_changed() -> None:
    rows = dict(re.findall(r"\| `tests/jobs/public/(\w+)\.py` \| (\d+) \|", GUIDE.read_text()))
    changed = {name: str(len(re.findall(r"# ftlaunch$", (SCRIPTS / f"{name}.py").read_text(), re.M))) for name in NAMES}
    assert rows == changed
    assert all(int(count) <= 4 for count in changed.values())
