"""EasyCkpt's lines for Hugging Face's Trainer, with the flags of its documentation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.adapters.kit import OFFLINE, WITH_TRAINER, environment
from tests.adapters.versions import RANKS_ON_CPU
from tests.support.framework_results import logs
from tests.support.harness import JOBS, FtJob
from tests.support.packages import require
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout

require("transformers", reason="Transformers is not installed (make frameworks)")
require("accelerate", reason="Accelerate is not installed (make frameworks)")
pytestmark = pytest.mark.long

NO_ENGINE = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed (make deepspeed)")
FLAGS = (
    *("--max_steps=10", "--gradient_checkpointing=false"),
    *("--save_strategy=steps", "--save_steps=2", "--save_total_limit=2"),
    *("--use_cpu=true", "--report_to=none", "--per_device_train_batch_size=2", "--logging_steps=2"),
)


def start(job: FtJob, name: str, flags: tuple[str, ...], options: tuple[str, ...], ranks: int, **env: str) -> None:
    job.out, job.run_dir = job.home / name, job.home / f"run_{name}"
    args = (str(job.out), f"--output_dir={job.out}/trainer", *FLAGS, *flags)
    options = (*WITH_TRAINER, "--backoff-first", "0.05s", *options)
    job.start(*options, script=JOBS / "easyckpt_hf.py", args=args, ranks=ranks, env={**OFFLINE, **env})


def ends_of(job: FtJob) -> dict[str, str]:
    """What rank 0 has left: the digest, the history, and which steps were made."""
    steps = (job.out / "steps_0").read_text().split()
    ends = {name: (job.out / name).read_text() for name in ("final_0", "history_0")}
    return {**ends, "steps": " ".join(sorted(set(steps), key=int))}


def run(job: FtJob, name: str, *more: str, ranks: int = 1, **env: str) -> dict[str, str]:
    start(job, name, more, (), ranks, **env)
    assert job.wait(120) == 0, job.stderr
    return ends_of(job)


def committed(job: FtJob) -> list[int]:
    return [event["step"] for event in job.events("checkpoint_committed")]


def kept(job: FtJob) -> list[int]:
    return sorted(step for step, _ in layout.list_iterations(job.run_dir / "checkpoints"))


def kept_by_trainer(job: FtJob) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in (job.out / "trainer").glob("checkpoint-*"))


@pytest.mark.parametrize(("ranks", "faults"), [pytest.param(1, "0 3; 0 7", marks=pytest.mark.slow), (2, "1 3; 0 7")])
def test_killed_and_as_undisturbed(job: FtJob, ranks: int, faults: str) -> None:
    """With no checkpoint yet it begins; the job saves at the Trainer's steps, and goes on between two of them.

    Taken out: without saving.ask() step 10 alone is kept.
    """
    calm = run(job, "calm", ranks=ranks, PLAIN="1")
    assert run(job, "killed", ranks=ranks, FAULT=faults) == calm
    assert job.fired() == [f"{fault} {attempt}" for attempt, fault in enumerate(faults.split("; "))]
    assert {*committed(job)} <= {2, 4, 6, 8, 10}  # a rank's death may break a save off, and memory is newer
    assert kept(job) == [8, 10] == kept_by_trainer(job)
    said = "".join(job.log(attempt, 0) for attempt in range(3))
    assert said.count("yet: the training begins") == 1
    assert said.count("resume_from_checkpoint is not used: the job goes on from its own step") == 2
    line = "save_steps=2: a checkpoint of the job at each multiple; save_total_limit=2: as many of the job's are kept;"
    assert said.count(line) == 3
    job.assert_clean()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_steps_and_as_many_as_the_flags_say(job: FtJob, ranks: int) -> None:
    start(job, "exact", (), (), ranks)
    assert job.wait(120) == 0, job.stderr
    assert committed(job) == [2, 4, 6, 8, 10]
    assert kept(job) == kept_by_trainer(job) == [8, 10]
    job.assert_clean()


def test_a_ratio_with_accumulation_and_options_that_hold(job: FtJob) -> None:
    """`save_steps` is a share of `max_steps` then; steps are the Trainer's, and not its batches."""
    flags = ("--save_steps=0.3", "--gradient_accumulation_steps=2")
    start(job, "ratio", flags, ("--keep", "5"), 1)
    assert job.wait(120) == 0, job.stderr
    assert committed(job) == kept(job) == [3, 6, 9, 10]
    line = "save_steps=3: a checkpoint of the job at each multiple; save_total_limit=2: not used, as the job was given"
    assert f"{line} --keep 5, which holds" in job.log(0, 0)
    job.assert_clean()


@pytest.mark.slow
def test_at_the_end_of_each_epoch(job: FtJob) -> None:
    """A pass has 15 steps. Taken out: without Boundaries.on_save() the last step alone is saved."""
    start(job, "epochs", ("--save_strategy=epoch", "--max_steps=40"), (), 1, STOP_AT="100")
    assert job.wait(120) == 0, job.stderr
    first, second, *_ = committed(job)
    assert 15 <= first < 30 <= second < 40
    assert len(kept(job)) == 2
    assert "save_strategy='epoch': a checkpoint of the job is asked for at each of the Trainer's" in job.log(0, 0)
    job.assert_clean()


SELDOM = ("--storage-interval", "1h")
LONGER = ("--max_steps=20",)


def zero(home: Path, stage: int) -> tuple[str, ...]:
    """The flag for DeepSpeed's ZeRO on CPUs."""
    auto = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = home / "zero.json"
    on_cpus = {"zero_force_ds_cpu_optimizer": False}
    config.write_text(json.dumps({"zero_optimization": {"stage": stage}, **dict.fromkeys(auto, "auto"), **on_cpus}))
    return (f"--deepspeed={config}",)


def lose_machine_at_14(job: FtJob, ranks: int, flags: tuple[str, ...] = LONGER, **env: str) -> int:
    """Stop a job once, have it go on and lose all of its memory at step 14; return the step that it has saved."""
    start(job, "lost", flags, SELDOM, ranks, STOP_AT="5", **env)
    assert job.wait(120) == 75, job.stderr
    [own] = kept(job)
    assert 5 <= own < 14
    start(job, "lost", flags, SELDOM, ranks, HOLD_AT="14", **env)
    wait_for(lambda: len([*job.out.glob("held_*")]) == ranks, "the ranks at step 14", 120)
    assert f"resume_from_checkpoint is not used: the job goes on from its own step {own}" in logs(job)
    job.dispose()
    assert kept(job) == [own]
    return own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "stage"),
    [
        (1, None),
        pytest.param(2, None, marks=RANKS_ON_CPU),
        pytest.param(2, 2, marks=[NO_ENGINE, RANKS_ON_CPU, pytest.mark.slow]),
    ],
)
def test_the_newer_of_both_checkpoints(job: FtJob, ranks: int, stage: int | None) -> None:
    """The job's own step is newer at first; then all memory is lost, and the Trainer's checkpoint is newer.

    From there it ends as the Trainer alone does, also where a rank is killed, before the first step, too. Taken out:
    without begin_at() the numbers of steps are those of the job's own checkpoint; where the steps are not compared, an
    older one of the Trainer's is gone on from; without KeptState.began_with the first kill has it begin at step 0.
    """
    flags = LONGER if stage is None else (*LONGER, *zero(job.home, stage))
    own = lose_machine_at_14(job, ranks, flags)
    assert kept_by_trainer(job) == [12, 14]
    shutil.copytree(job.out / "trainer", job.home / "alone" / "trainer")
    alone = run(job, "alone", *flags, ranks=ranks, PLAIN="resume")

    job.out, job.run_dir = job.home / "lost", job.home / "run_lost"
    (job.out / "steps_0").unlink()
    broken = job.out / "trainer" / "checkpoint-16"
    broken.mkdir()
    start(job, "lost", flags, SELDOM, ranks, FAULT="0 14; 0 17")
    assert job.wait(120) == 0, job.stderr
    assert job.fired() == ["0 14 0", "0 17 1"]
    assert ends_of(job) == alone
    assert alone["steps"] == "14 15 16 17 18 19"
    resumed = [(event["step"], event["source"]) for event in job.events("resumed")][-3:]
    assert resumed == [(14, None), (14, "memory"), (17, "memory")]
    line = (
        f"the training begins at step 14 with the Trainer's own checkpoint {job.out}/trainer/checkpoint-14, as the job"
    )
    assert logs(job).count(f"{line} has nothing newer than step {own}: what is restored is what") == 1
    assert logs(job).count(f"checkpoint-16 in {job.out}/trainer is incomplete, and passed over") == 1
    assert kept(job) == [own, 20]
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "env", "said"),
    [
        (
            LONGER,
            {"NOT_ASKED": "1"},
            "checkpoint-14 is newer than the job's step {own}, and is not used, as the script",
        ),
        (("--max_steps=14",), {}, "checkpoint-14 is the end of a training, from which the Trainer would make one step"),
    ],
)
def test_what_the_newer_one_is_not_used_for(job: FtJob, flags: tuple[str, ...], env: dict[str, str], said: str) -> None:
    own = lose_machine_at_14(job, 1)
    start(job, "lost", flags, SELDOM, 1, **env)
    assert job.wait(120) == 0, job.stderr
    assert said.format(own=own) in logs(job)
    assert job.events("resumed")[-1]["step"] == own
    job.assert_clean()


@pytest.mark.slow
def test_a_checkpoint_that_one_node_has(job: FtJob) -> None:
    """The job's own is gone on from. With none of its own it does not begin: the ranks would not have the same."""
    own = lose_machine_at_14(job, 2, SPLIT="1")
    start(job, "lost", LONGER, SELDOM, 2, SPLIT="1")
    assert job.wait(120) == 0, job.stderr
    unseen = "rank 1 does not see the Trainer's checkpoint of step"
    assert f"{unseen} 14, which is newer than the job's own step {own} and needs an output_dir" in logs(job)
    assert job.events("resumed")[-1]["step"] == own
    job.assert_clean()
    shutil.rmtree(job.run_dir)
    start(job, "lost", LONGER, SELDOM, 2, SPLIT="1")
    assert job.wait(120) not in (0, 75)
    assert f"cannot begin: {unseen} 20; give an output_dir that all nodes share" in logs(job)


@pytest.mark.slow
def test_the_newer_one_without_a_supervisor(tmp_path: Path) -> None:
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "out"
    settings = {"FTLAUNCH_CHECKPOINT_DIR": str(checkpoints), "FTLAUNCH_STORAGE_INTERVAL": "1000"}
    script = (sys.executable, str(JOBS / "easyckpt_hf.py"), str(out), f"--output_dir={out}/trainer", *FLAGS, *LONGER)

    def begin(**env: str) -> subprocess.Popen[str]:
        everything = {**environment(), **settings, **env}
        return subprocess.Popen(script, env=everything, stderr=subprocess.PIPE, text=True)

    with begin(STOP_AT="5") as stopped:
        said = stopped.communicate(timeout=150)[1]
        assert stopped.returncode == 75, said
    holds = "save_steps=2: not used, as the job was given FTLAUNCH_STORAGE_INTERVAL=1000, which holds"
    assert holds in said
    [(own, _)] = layout.list_iterations(checkpoints)
    assert 5 <= own < 14
    with begin(HOLD_AT="14") as lost:
        wait_for((out / "held_0").exists, "step 14", 120)
        lost.kill()
        lost.communicate()
    assert [step for step, _ in layout.list_iterations(checkpoints)] == [own]
    with begin() as last:
        said = last.communicate(timeout=150)[1]
        assert last.returncode == 0, said
    assert f"the training begins at step 14 with the Trainer's own checkpoint {out}/trainer/checkpoint-14" in said
    assert sorted(step for step, _ in layout.list_iterations(checkpoints)) == [own, 20]


@pytest.mark.slow
@NO_ENGINE
@pytest.mark.parametrize("stage", [1, 2])
def test_a_trainer_that_starts_deepspeed(job: FtJob, stage: int) -> None:
    """EasyCkpt's way to DeepSpeed: the same two lines, and a configuration of DeepSpeed among the Trainer's flags."""
    flags = zero(job.home, stage)
    calm = run(job, "calm", *flags, ranks=2, PLAIN="1")
    assert run(job, "killed", *flags, ranks=2, FAULT="1 3; 0 7") == calm
    assert job.fired() == ["1 3 0", "0 7 1"]
    job.assert_clean()
