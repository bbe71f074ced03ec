"""EasyCkpt's lines for Hugging Face's Trainer, with the flags of its documentation."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from tests.adapters.kit import OFFLINE, WITH_TRAINER
from tests.support.harness import JOBS, FtJob

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.long

FLAGS = (
    *("--max_steps=10", "--gradient_checkpointing=false"),
    *("--save_strategy=steps", "--save_steps=2", "--save_total_limit=2"),
    *("--use_cpu=true", "--report_to=none", "--per_device_train_batch_size=2", "--logging_steps=2"),
)


def run(job: FtJob, name: str, *more: str, ranks: int = 1, **env: str) -> dict[str, str]:
    job.out, job.run_dir = job.home / name, job.home / f"run_{name}"
    args = (str(job.out), f"--output_dir={job.out}/trainer", *FLAGS, *more)
    options = (*WITH_TRAINER, "--backoff-first", "0.05s")
    job.start(*options, script=JOBS / "easyckpt_hf.py", args=args, ranks=ranks, env={**OFFLINE, **env})
    assert job.wait(120) == 0, job.stderr
    steps = (job.out / "steps_0").read_text().split()
    ends = {path.name: path.read_text() for path in job.out.glob("*_0") if path.name != "steps_0"}
    return {**ends, "steps": " ".join(sorted(set(steps), key=int))}


def test_killed_and_as_undisturbed(job: FtJob) -> None:
    """With no checkpoint yet it begins; then it goes on from the job's own step, between two of the Trainer's."""
    calm = run(job, "calm", PLAIN="1")
    assert run(job, "killed", FAULT="0 3; 0 7") == calm
    assert job.fired() == ["0 3 0", "0 7 1"]
    said = "".join(job.log(attempt, 0) for attempt in range(3))
    assert said.count("yet: the training begins") == 1
    assert said.count("resume_from_checkpoint is not used: the job goes on from its own step") == 2
    line = "TrainerWrapper: save_strategy='steps', save_steps=2, save_total_limit=2: the Trainer writes these"
    assert said.count(line) == 3
    kept = sorted(path.name for path in (job.out / "trainer").glob("checkpoint-*"))
    assert kept == ["checkpoint-10", "checkpoint-8"]
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed (make deepspeed)")
@pytest.mark.parametrize("stage", [1, 2])
def test_a_trainer_that_starts_deepspeed(job: FtJob, stage: int) -> None:
    """EasyCkpt's way to DeepSpeed: the same two lines, and a configuration of DeepSpeed among the Trainer's flags."""
    auto = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = job.home / "zero.json"
    on_cpus = {"zero_force_ds_cpu_optimizer": False}
    config.write_text(json.dumps({"zero_optimization": {"stage": stage}, **dict.fromkeys(auto, "auto"), **on_cpus}))
    flags = (f"--deepspeed={config}",)
    calm = run(job, "calm", *flags, ranks=2, PLAIN="1")
    assert run(job, "killed", *flags, ranks=2, FAULT="1 3; 0 7") == calm
    assert job.fired() == ["1 3 0", "0 7 1"]
    job.assert_clean()
