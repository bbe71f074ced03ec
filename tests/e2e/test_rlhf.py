"""The example with several models: whatever happens in mid-episode, both trained models end as if undisturbed."""

from __future__ import annotations

import json

import pytest
from tests.support.harness import JOBS, FtJob

from ftlaunch_contract.checkpoint import layout, verify

SCRIPT = JOBS / "rlhf.py"
ROLLOUTS, ITERATIONS, CALLS = 3, 4, 13  # of an episode; calls of the policy in a rollout, one for each token and one
EPISODE = ROLLOUTS + ITERATIONS
CALLS_OF_EPISODE = ROLLOUTS * CALLS + ITERATIONS


def start(job: FtJob, *options: str, spec: str = "", faults: str = "") -> None:
    args = ["--episodes", "5", "--rollouts", str(ROLLOUTS), "--iterations", str(ITERATIONS), "--out", str(job.out)]
    lines = [f"script: {SCRIPT}", f"args: {json.dumps(args)}", f"data_checkpoint_path: {job.home / 'data'}", spec]
    (job.home / "job.yaml").write_text("\n".join(lines))
    job.start("--warm", "--storage-interval", "5", *options, script="job.yaml", args=(), env={"FAULTS": faults})


def result(job: FtJob) -> tuple[dict[str, str], bytes, bytes]:
    """Step -> what was reported of it (a step made twice: twice the same), and the two models."""
    scores: dict[str, str] = {}
    for line in (job.out / "scores_0.csv").read_text().splitlines():
        step, _, words = line.partition(",")
        assert scores.setdefault(step, words) == words
    return scores, (job.out / "policy.safetensors").read_bytes(), (job.out / "value.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], bytes, bytes]:
    job = FtJob(tmp_path_factory.mktemp("calm"))
    try:
        start(job)
        assert job.wait() == 0, job.stderr
    finally:
        job.dispose()
    return result(job)


def progress(job: FtJob, step: int) -> dict[str, int]:
    """What a checkpoint says of the data."""
    common = json.loads((layout.iteration_dir(job.home / "data", step) / layout.COMMON).read_text())
    saved = common["state"]["progress"]["state"]
    return {name: saved[name] for name in ("episode", "train_iteration", "consumed_samples")}


def made_of(step: int) -> dict[str, int]:
    """What it must say: so many episodes, iterations and prompts of 32 on 2 ranks."""
    episode, at = divmod(step, EPISODE)
    rollouts = episode * ROLLOUTS + min(at, ROLLOUTS)
    iterations = episode * ITERATIONS + max(0, at - ROLLOUTS)
    return {"episode": episode, "train_iteration": iterations, "consumed_samples": rollouts * 64}


def call_in(at: int) -> int:
    """The first call of the policy in step `at` of the second episode."""
    return CALLS_OF_EPISODE + min(at, ROLLOUTS) * CALLS + max(0, at - ROLLOUTS) + 1


def stop_in_third_episode(steps_before: int) -> str:
    """A SIGTERM in an attempt that goes on from `steps_before` steps."""
    left = CALLS_OF_EPISODE * 2 + 1 - (call_in(steps_before - EPISODE) - 1)
    return f"sigterm 0 1 {left + CALLS}"


@pytest.mark.long
@pytest.mark.parametrize(
    "at",
    [
        pytest.param(ROLLOUTS - 1, id="between rollouts"),
        pytest.param(ROLLOUTS + 2, id="between iterations", marks=pytest.mark.slow),
    ],
)
def test_killed_in_mid_episode_then_stopped_and_started_again(
    job: FtJob, undisturbed: tuple[dict[str, str], bytes, bytes], at: int
) -> None:
    """Data progress is in the same commit as the models, and the frozen models are in none."""
    start(job, "--verify-resume", "off", faults=f"sigkill 1 0 {call_in(at)}, {stop_in_third_episode(EPISODE + at)}")
    assert job.wait() == 75, job.stderr
    assert (job.home / "fired").read_text().split() == ["sigkill", "sigterm"]
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"], resumed["steps_lost"]) == ("memory", EPISODE + at, 0)
    stopped = job.events("job_stopped")[-1]["step"]
    committed = [step for step, _ in layout.list_iterations(job.home / "data")]
    assert stopped in committed
    assert len(committed) >= 2
    for step in committed:
        assert progress(job, step) == made_of(step)
    tensors = verify.read_metadata(layout.iteration_dir(job.home / "data", stopped))["tensors"]
    assert any(name.startswith("policy.") for name in tensors)
    assert any(name.startswith("value.") for name in tensors)
    assert not [name for name in tensors if name.startswith(("reference.", "reward."))]

    start(job)
    assert job.wait() == 0, job.stderr
    assert "DataLoader" not in job.stderr, "its progress saves the sampler"
    common = json.loads((layout.iteration_dir(job.home / "data", stopped) / layout.COMMON).read_text())
    assert common["consumed_samples"] == made_of(stopped)["consumed_samples"]
    assert (job.events("resumed")[-1]["source"], job.events("resumed")[-1]["step"]) == ("storage", stopped)
    assert result(job) == undisturbed
    job.assert_clean()


@pytest.mark.slow
def test_enable_resume_training_false_begins_with_episode_0_and_loses_nothing(
    job: FtJob, undisturbed: tuple[dict[str, str], bytes, bytes]
) -> None:
    """It holds for what earlier runs left: a crash within the run resumes all the same."""
    start(job, faults=f"sigterm 0 0 {call_in(1)}")
    assert job.wait() == 75, job.stderr
    earlier = {path.name for _, path in layout.list_iterations(job.home / "data")}
    assert earlier

    start(job, spec="enable_resume_training: false", faults=f"sigkill 1 0 {call_in(1)}")
    assert job.wait() == 0, job.stderr
    assert (job.home / "fired").read_text().split() == ["sigterm", "sigkill"]
    sources = [(event["source"], event["step"]) for event in job.events("resumed")]
    assert sources[-2:] == [(None, 0), ("memory", EPISODE + 1)]
    assert result(job) == undisturbed
    put_aside = {path.name for path in (job.home / "data").glob("*/iteration_*")}
    assert earlier <= put_aside
    job.assert_clean()
