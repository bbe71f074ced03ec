"""What is refused, what is said, and scripts that know nothing of ftlaunch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.framework_results import FINDS_JOBS, logs
from tests.support.harness import FtJob
from tests.support.lightning_jobs import SCRIPT, left, start

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.refused("Lightning", "LearningRateFinder", "`dataloader_iter`")
@pytest.mark.parametrize(
    ("style", "sentence"),
    [
        ("finder", "cannot attach beside the callback LearningRateFinder: it makes steps of its own"),
        ("lonely", "cannot attach: the Trainer has a world size of 1, and the job has 2 ranks"),
        ("iterator", "cannot attach: training_step(dataloader_iter) fetches its batches itself"),
    ],
)
def test_refused_at_once(style: str, sentence: str, job: FtJob) -> None:
    start(job, style, ranks=2 if style == "lonely" else 1)
    assert job.wait() == 1
    assert sentence in logs(job)
    assert "it would come again in every attempt" in job.stderr
    assert len(job.events("attempt_started")) == 1
    job.assert_clean()


def entry_points(folder: Path) -> str:
    """What makes a folder on the path stand for the installed distribution; returns the path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "ftlaunch-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ftlaunch\nVersion: 0\n")
    groups = project["entry-points"].items()
    lines = [f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in group.items()) for name, group in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.slow
def test_an_unmodified_script(job: FtJob, tmp_path: Path) -> None:
    """With the variable it is attached to, without it is not, and both end alike."""
    (tmp_path / "installed").mkdir()
    path = entry_points(tmp_path / "installed")
    start(job, "zero+noise", env={"PYTHONPATH": path})
    assert job.wait() == 0, job.stderr + logs(job)
    assert "attached" not in logs(job)
    assert job.events("checkpoint_committed") == []
    calm = left(job.out)
    job.out = job.home / "again"
    job.run_dir = job.home / "run_again"
    start(job, "zero+noise", faults="step 0 20", env={"PYTHONPATH": path, "FTLAUNCH_AUTO_ATTACH": "1"})
    assert job.wait() == 0, job.stderr + logs(job)
    assert job.fired() == ["step 0 20 0"]
    assert logs(job).count("attached to the fit() of this script: model, optimizer, scheduler\n") == 2
    assert left(job.out) == calm
    job.assert_clean()


@pytest.mark.slow
def test_a_checkpoint_that_is_given(job: FtJob, tmp_path: Path) -> None:
    """It is where the job begins, and a resumed job does not go back to it."""
    start(job, "noise")
    assert job.wait() == 0, job.stderr + logs(job)
    [made] = job.out.glob("csv/version_0/checkpoints/last.ckpt")
    ends = []
    for number, faults in enumerate(("", "step 0 50")):
        job.out, job.run_dir = job.home / f"out_{number}", job.home / f"run_{number}"
        job.out.mkdir()
        (job.out / "given.ckpt").write_bytes(made.read_bytes())
        start(job, "noise+given", faults=faults)
        assert job.wait() == 0, job.stderr + logs(job)
        ends.append(left(job.out))
    assert job.fired() == ["step 0 50 0"]
    assert "is not loaded: training goes on from step" in logs(job)
    assert ends[0] == ends[1]
    job.assert_clean()


@pytest.mark.slow
def test_the_other_name_of_lightning(job: FtJob, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    script = tmp_path / "other.py"
    script.write_text(SCRIPT.read_text().replace("lightning.pytorch", "pytorch_lightning"))
    options = ("--warm", "--preload", "pytorch_lightning")
    ends = []
    for number, faults in enumerate(("", "step 0 20")):
        job.out, job.run_dir = job.home / f"out_{number}", job.home / f"run_{number}"
        env = {"FAULT": faults, **FINDS_JOBS}
        job.start(*options, script=script, args=(str(job.out), "noise+metric"), ranks=1, env=env)
        assert job.wait() == 0, job.stderr + logs(job)
        ends.append(left(job.out))
    assert job.fired() == ["step 0 20 0"]
    assert ends[0] == ends[1]
    job.assert_clean()


@pytest.mark.slow
def test_a_list_in_the_module_is_told(job: FtJob) -> None:
    """What training_step() has gathered for the end of the epoch is lost in its middle."""
    start(job, "outputs")
    assert job.wait() == 0, job.stderr + logs(job)
    assert "`model.outputs` is not saved" in logs(job)


@pytest.mark.slow
def test_a_fit_that_was_left_by_an_exception(job: FtJob) -> None:
    """Taken out: without on_exception() nobody says that the next fit() is not kept."""
    start(job, "raises")
    assert job.wait() == 0, job.stderr + logs(job)
    assert logs(job).count("the fit() before this one has not come to its end: of this one nothing is saved") == 1
    job.assert_clean()


@pytest.mark.slow
def test_what_changes_the_restored_weights_is_said(job: FtJob) -> None:
    start(job, "reset", faults="step 0 9")
    assert job.wait() == 0, job.stderr + logs(job)
    assert job.fired() == ["step 0 9 0"]
    assert logs(job).count("has changed parameters after they were restored: this run is not exact") == 1
    job.assert_clean()
