"""Several trainings of one process: a job that is killed in a later one goes on there, behind the others' ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.e2e.test_alone import AloneJob
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout

pytestmark = pytest.mark.long

SCRIPT = JOBS / "trainings.py"
ENDS, STEPS = [10, 19], 30


def begin(job: FtJob, *options: str, ranks: int = 2, **env: str) -> None:
    job.start(*options, script=SCRIPT, env=env, ranks=ranks)


def between(out: Path, rank: int) -> set[str]:
    """What the script has seen between two trainings, each time that it came by."""
    return set((out / f"between_{rank}").read_text().splitlines())


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FtJob]:
    """Undisturbed."""
    job = FtJob(tmp_path_factory.mktemp("calm"))
    begin(job)
    assert job.wait() == 0, job.stderr
    yield job
    job.dispose()


def assert_same(job: FtJob, calm: FtJob) -> None:
    """Losses, what lies between the trainings, and the end."""
    for rank in (0, 1):
        assert job.losses(rank) == calm.losses(rank)
        assert between(job.out, rank) == between(calm.out, rank)
    assert job.final() == calm.final()
    assert len(job.final()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "from_step"),
    [
        pytest.param("1 22", [22], marks=pytest.mark.slow),  # in the third
        pytest.param("0 11", [11], marks=pytest.mark.slow),  # in the first step of the second
        ("1 12;0 23;0 29", [12, 23, 29]),  # in both, and in the last step
        pytest.param("0 between1", [10], marks=pytest.mark.slow),
        pytest.param("1 between2;1 20;0 24", [19, 20, 24], marks=pytest.mark.slow),
        pytest.param("1 9", [9], marks=pytest.mark.slow),  # in the first one's last step
    ],
)
def test_killed_it_goes_on_in_the_training_that_it_had_reached(
    job: FtJob, calm: FtJob, fault: str, from_step: list[int]
) -> None:
    begin(job, "--max-restarts", "4", "--verify-resume", "off", FAULT=fault)
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == len(from_step)
    resumed = job.events("resumed")[1:]
    assert [(event["source"], event["step"], event["steps_lost"]) for event in resumed] == [
        ("memory", step, 0) for step in from_step
    ]
    assert_same(job, calm)
    job.assert_clean()


@pytest.mark.slow
def test_killed_it_proves_its_resume_also_where_a_training_has_just_begun(job: FtJob, calm: FtJob) -> None:
    """The end of a training, which is being saved, is not gone behind.

    Taken out: without `Pages.newest_held` the job resumed one step before that end, and failed in some runs: the end
    that it waited for had been saved by the attempt before.
    """
    begin(job, "--max-restarts", "4", "--verify-resume", "on", FAULT="1 between2;1 20;0 24")
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == 3
    assert [event["step"] for event in job.events("resumed")][1] == 19
    assert {event["answer"] for event in job.events("resume_verified")} == {"same"}
    assert job.events("resume_differs") == []
    assert_same(job, calm)
    job.assert_clean()


@pytest.mark.slow
def test_it_goes_on_from_storage_with_one_checkpoint_kept(job: FtJob, calm: FtJob) -> None:
    """Taken out: retention deletes the ends that the newest checkpoint needs."""
    begin(job, "--storage-interval", "4", "--keep", "1", PACE="0.1")
    checkpoints = job.run_dir / "checkpoints"
    wait_for(lambda: max(dict(layout.list_iterations(checkpoints)), default=0) > ENDS[1], "one of the third training")
    job.supervisor.kill()
    job.supervisor.wait()
    shutil.rmtree(job.memory)
    begin(job, "--storage-interval", "4", "--keep", "1")
    assert job.wait() == 0, job.stderr
    resumed = job.events("resumed")[-1]
    assert resumed["source"] == "storage"
    assert resumed["step"] > ENDS[1]
    for number, (end, word) in enumerate(zip(ENDS, ("", " (tune)"), strict=True), 1):
        assert f"training {number}{word} of this process has ended at step {end}: it is put back" in job.stdout
    assert [step for step, _ in layout.list_iterations(job.run_dir / "checkpoints")] == [STEPS, *reversed(ENDS)]
    assert_same(job, calm)
    job.assert_clean()


@pytest.mark.slow
def test_told_to_stop_in_a_later_training_it_goes_on_there(job: FtJob, calm: FtJob) -> None:
    begin(job, PACE="0.1")
    job.wait_step(20)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    begin(job)
    assert job.wait() == 0, job.stderr
    assert_same(job, calm)
    job.assert_clean()


def stopped_late(job: FtJob) -> None:
    begin(job, PACE="0.1")
    job.wait_step(20)
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "a flipped bit"])
def test_an_end_that_cannot_be_used_is_no_beginning(job: FtJob, damage: str) -> None:
    """Taken out: with a flipped bit it goes on, silently, from other weights."""
    stopped_late(job)
    directory = layout.iteration_dir(job.run_dir / "checkpoints", ENDS[0])
    if damage == "gone":
        shutil.rmtree(directory)
    else:
        shard = max(directory.glob("*model*.safetensors"), key=lambda path: path.stat().st_size)
        content = bytearray(shard.read_bytes())
        content[-9] ^= 4
        shard.write_bytes(content)
    begin(job)
    assert job.wait() == 1, job.stderr
    assert f"cannot resume: the end of training 1 of this process, {directory}, cannot be used" in job.stderr
    assert "--fresh" in job.stderr
    assert not job.final()


@pytest.mark.slow
def test_an_earlier_training_cannot_become_longer(job: FtJob) -> None:
    stopped_late(job)
    begin(job, FIRST="12")
    assert job.wait() == 1, job.stderr
    assert "cannot resume: training 1 of this process had ended at step 10" in job.stderr
    assert not job.final()


@pytest.mark.slow
def test_it_goes_on_with_another_number_of_ranks(job: FtJob) -> None:
    """What was trained to its end is what it was; from the resume on the batches are others, which is said."""
    stopped_late(job)
    begin(job, ranks=1)
    assert job.wait() == 0, job.stderr
    assert "2 ranks saved the checkpoint of step 10" in job.stdout
    assert max(job.losses()) == STEPS - 1


@pytest.mark.slow
def test_without_a_supervisor(tmp_path: Path, calm: FtJob) -> None:
    alone = AloneJob(tmp_path)
    alone.script = SCRIPT
    process = alone.start(ranks=2, FAULT="1 22")
    assert process.wait(60) != 0
    assert (alone.out / "fired").exists()
    alone.start(ranks=2)
    assert alone.process is not None
    assert alone.process.wait(60) == 0, (tmp_path / "stderr").read_text()
    assert [path.read_text() for path in sorted(alone.out.glob("final_*"))] == calm.final()
    for rank in (0, 1):
        assert between(alone.out, rank) == between(calm.out, rank)
    alone.assert_clean()


def test_a_training_that_is_not_over_is_not_followed_by_another(job: FtJob, tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(
        "import torch, ftlaunch_hooks as ft\n"
        "job = ft.attach(model=torch.nn.Linear(2, 2))\n"
        "job.step_done()\n"
        "ft.attach(model=torch.nn.Linear(2, 2))\n"
    )
    job.start(script=script, args=(), ranks=1)
    assert job.wait() == 1
    assert "attach() was called before in this process, and that training is not over" in job.stderr
    assert "finish()" in job.stderr


OTHERS = """
import pathlib, sys, torch, ftlaunch_hooks as ft
from ftlaunch_contract.checkpoint import layout, verify
model = torch.nn.Linear(2, 2)
job = ft.attach(model=model)
for _ in job.steps(3):
    model.weight.data += 1
directory = layout.iteration_dir(pathlib.Path(sys.argv[1]), 3)
found = verify.read_metadata(directory)
found["files"][next(name for name in found["files"] if "-model-" in name)]["xxh3_128"] = ["0" * 32]
(directory / layout.METADATA).write_bytes(verify.seal(found))
ft.attach(training="next", model=model)
"""


@pytest.mark.slow
def test_the_end_of_another_life_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """It is complete, and of the same step. Taken out: what was saved is compared with nothing."""
    command = [sys.executable, "-c", OTHERS, str(tmp_path)]
    env = {**os.environ, "FTLAUNCH_CHECKPOINT_DIR": str(tmp_path)}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the training before has ended at step 3, and that step could not be saved" in done.stderr


FOLDS = """
import os, pathlib, signal, sys, torch, ftlaunch_hooks as ft
again = os.environ["FTLAUNCH_ATTEMPT"] != "0"
for fold in range(4):
    weights = pathlib.Path(sys.argv[1], f"fold{fold}.pt")
    if weights.exists():
        continue
    torch.manual_seed(fold)
    model = torch.nn.Linear(2, 2)
    words = (os.environ["AGAIN"] if again else "fold {}").format(fold)
    job = ft.attach(training=words, model=model)
    for step in job.steps(job.began_at + 5):
        model.weight.data += torch.rand(2, 2) * (fold + 1)
        if not again and os.environ.get("KILLED_AT") == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
    torch.save(model.state_dict(), weights)
"""


def folds(job: FtJob, home: Path, again: str = "fold {}", **env: str) -> dict[str, list[Any]]:
    """Train each fold whose file is not there yet, all with the same names and shapes; returns the weights by file."""
    home.mkdir(exist_ok=True)
    (home / "folds.py").write_text(FOLDS)
    env["AGAIN"] = again
    job.start(
        "--verify-resume", "off", "--max-restarts", "1", script=home / "folds.py", args=(str(home),), ranks=1, env=env
    )
    job.wait()
    return weights(home)


def weights(home: Path) -> dict[str, list[Any]]:
    return {path.name: torch.load(path)["weight"].tolist() for path in home.glob("fold*.pt")}


# The last step of one; two and three of them are left out.
@pytest.mark.parametrize(
    "step", [pytest.param(4, marks=pytest.mark.slow), 14, pytest.param(20, marks=pytest.mark.slow)]
)
def test_a_script_may_leave_out_what_is_over(job: FtJob, tmp_path: Path, step: int) -> None:
    """Taken out: told apart by their order alone, a fold has the weights of another one."""
    disturbed = folds(job, tmp_path / "disturbed", KILLED_AT=str(step))
    assert [event["step"] for event in job.events("resumed")] == [0, step]
    assert job.wait() == 0, job.stderr
    job.start("--fresh", script=tmp_path / "disturbed" / "folds.py", args=(str(tmp_path),), ranks=1, env={"AGAIN": ""})
    assert job.wait() == 0, job.stderr
    assert weights(tmp_path) == disturbed
    assert len(disturbed) == 4


@pytest.mark.slow
def test_a_training_that_the_job_does_not_know_is_refused(job: FtJob, tmp_path: Path) -> None:
    assert len(folds(job, tmp_path / "here", KILLED_AT="14", again="part {}")) == 2
    assert job.wait() == 1
    assert "cannot attach the training 'part 2': the job has been in the training 'fold 0', the training" in job.stderr


def test_each_training_has_a_word_of_its_own(job: FtJob, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(
        "import torch, ftlaunch_hooks as ft\n"
        "for _ in range(2):\n"
        "    for step in ft.attach(model=torch.nn.Linear(2, 2)).steps(3): pass\n"
    )
    job.start(script=tmp_path / "twice.py", args=(), ranks=1)
    assert job.wait() == 1
    assert "cannot attach again: the training without a word has begun in this process before" in job.stderr


ENDS_EARLY = """
import os, signal, torch, ftlaunch_hooks as ft
def train(word):
    job = ft.attach(training=word, model=torch.nn.Linear(2, 2))
    for step in job.steps(job.began_at + 5):
        if word == "second" and step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
train("first")
if os.environ["FTLAUNCH_ATTEMPT"] == "0":
    train("second")
"""


def test_a_script_that_does_not_come_to_where_the_job_is_does_not_end_well(job: FtJob, tmp_path: Path) -> None:
    """Taken out: the job ends with 0, and is trained in part."""
    (tmp_path / "early.py").write_text(ENDS_EARLY)
    job.start("--max-restarts", "1", script=tmp_path / "early.py", args=(), ranks=1)
    assert job.wait() == 1, job.stderr
    assert "cannot end: the script has attached 1 times, and the job goes on in a later training" in job.stdout
