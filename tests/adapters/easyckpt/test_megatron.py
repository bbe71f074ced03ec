"""Megatron-core in Megatron-LM's loop with EasyCkpt's lines: its ranks are killed, and it ends as undisturbed."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter

import pytest
from tests.adapters.versions import DOUBTS
from tests.support.framework_results import left, logs, prepare_second_run
from tests.support.harness import JOBS, FtJob
from tests.support.packages import require

from ftlaunch_contract.checkpoint import layout

require("megatron", reason="Megatron-core is not installed (pip install megatron-core)")
pytestmark = pytest.mark.long

OPTIONS = ("--warm", "--preload", "torch._dynamo", "--backoff-first", "0.05s", "--backoff-max", "0.1s")
KILLS = "step 0 3; step 0 4; step 0 9"


def start(job: FtJob, style: str, ranks: int, faults: str = "", *options: str, script_asks: bool = False) -> None:
    env = {"FAULT": faults, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    args, script = (str(job.out), style), JOBS / "megatron_gpt.py"
    job.start(*OPTIONS, *options, script=script, args=args, ranks=ranks, env=env, script_asks=script_asks)


def run(job: FtJob, style: str, ranks: int, faults: str = "") -> int:
    start(job, style, ranks, faults)
    return job.wait(150)


@pytest.mark.slow
@pytest.mark.exact("Megatron", "FP32, FP16 and BF16", "data and tensor parallelism", "the calls of EasyCkpt")
@pytest.mark.parametrize(
    ("style", "ranks", "faults"),
    [
        pytest.param("fp32", 1, KILLS, marks=pytest.mark.slow),
        ("bf16+distributed+evaluate+late", 2, "step 1 3; evaluation 0 4; step 0 9"),
        pytest.param("fp16", 2, "step 1 2; step 0 7", marks=pytest.mark.slow),
        pytest.param("bf16", 2, "step 1 3; step 0 4", marks=pytest.mark.slow),
        pytest.param("bf16+tensor", 2, "step 1 3; step 1 4; step 0 9", marks=pytest.mark.slow),
        pytest.param("core", 2, "step 1 5; step 0 6", marks=pytest.mark.slow),
        pytest.param("old", 1, KILLS, marks=pytest.mark.slow),
    ],
)
def test_killed_and_as_undisturbed(style: str, ranks: int, faults: str, job: FtJob) -> None:
    """Taken out: without the tracker's states, or with the random numbers that making loaders draws, losses differ."""
    assert_as_undisturbed(job, style, ranks, faults)


def assert_as_undisturbed(job: FtJob, style: str, ranks: int, faults: str) -> None:
    """The job with its faults ends as that without our hooks; nothing is said of what is not kept."""
    assert run(job, f"{style}+plain", ranks) == 0, job.stderr + logs(job)
    calm = left(job.out)
    prepare_second_run(job)
    assert run(job, style, ranks, faults) == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left(job.out) == calm
    for words in ("not exact", "is not saved", "does not ask for job.step", "cannot look"):
        assert words not in logs(job)
    job.assert_clean()


@pytest.mark.slow
@DOUBTS
@pytest.mark.exact("Megatron", "the rerun state machine")
def test_results_are_judged_as_in_an_undisturbed_run(job: FtJob) -> None:
    """Taken out: without rerun.put_back() the values that are large are learned anew, and others are doubted."""
    assert_as_undisturbed(job, "rerun+accumulate", 2, "step 1 1; step 0 2; step 1 7")
    runs = [line.split()[5] for line in (job.out / "losses_0").read_text().splitlines()]
    assert runs[0] == "1", "the first iteration is not judged"
    assert "2" in runs, "no iteration was doubted, and made again"


@pytest.mark.slow
@pytest.mark.exact("Megatron", "pipelines (interleaved ones, too)")
@pytest.mark.parametrize(
    ("style", "ranks", "faults"),
    [
        ("interleaved+bf16+evaluate+late", 2, "step 1 3; evaluation 0 4; step 0 9"),
        pytest.param("pipeline+fp16", 2, "step 0 1; step 1 2; step 0 7", marks=pytest.mark.slow),
        pytest.param("pipeline+bf16+distributed", 4, "step 0 3; step 1 4; step 3 9", marks=pytest.mark.slow),
        pytest.param("pipeline+tensor", 4, "step 3 2; step 0 7", marks=pytest.mark.slow),
    ],
)
def test_a_pipeline_is_killed_and_as_undisturbed(style: str, ranks: int, faults: str, job: FtJob) -> None:
    """Taken out: where only the first part of an interleaved rank's model is attached, its weights differ."""
    assert_as_undisturbed(job, style, ranks, faults)


@pytest.mark.exact("Megatron", "experts")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "ranks", "faults"),
    [
        ("experts+evaluate+late", 2, "step 1 3; evaluation 0 4; step 0 9"),
        ("experts+bf16+distributed", 2, "step 0 1; step 1 2; step 0 7"),
        ("experts+bf16+distributed", 4, "step 3 1; step 0 7"),
        ("experts+pipeline", 4, "step 2 1; step 0 7"),
    ],
)
def test_experts_are_killed_and_as_undisturbed(style: str, ranks: int, faults: str, job: FtJob) -> None:
    """Taken out: where ranks with experts of their own are taken for replicas, one goes on with another's experts."""
    assert_as_undisturbed(job, style, ranks, faults)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "copies", "of_experts"),
    [("tensor+bf16", 2, 0), ("pipeline+fp16", 2, 0), ("experts+bf16", 1, 2), ("experts+pipeline", 2, 4)],
)
def test_ranks_of_a_data_parallel_group_save_what_they_have_alike_once(
    style: str, copies: int, of_experts: int, job: FtJob
) -> None:
    """On four ranks. copies: of a parameter's name in a checkpoint, as many as ranks that share the model out.

    Taken out: with each rank's own there are four.
    """
    start(job, f"{style}+slow", 4)
    job.wait_step(3)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    metadata = max(job.home.glob("**/iteration_*/metadata.json"))
    names = Counter(re.sub(r"@[\d:,-]+$", "", key) for key in json.loads(metadata.read_text())["tensors"])
    stepped = {name: count for name, count in names.items() if re.search(r"^model.*\.weight$|exp_avg|:value$", name)}
    experts = {name for name in stepped if ".experts." in name or "optimizer_1" in name}
    assert len(stepped.keys() - experts) > 30, names
    assert {name: count for name, count in stepped.items() if name not in experts and count not in (1, copies)} == {}
    assert {stepped[name] for name in experts} == ({of_experts} if of_experts else set()), stepped
    assert run(job, style, 4) == 0, job.stderr + logs(job)


@pytest.mark.slow
def test_stopped_twice_and_started_again(job: FtJob) -> None:
    assert run(job, "bf16+distributed+plain", 2) == 0, job.stderr + logs(job)
    calm = left(job.out)
    prepare_second_run(job)
    for step in (3, 7):
        start(job, "bf16+distributed+slow", 2)
        job.wait_step(step)
        job.supervisor.send_signal(signal.SIGTERM)
        assert job.wait() == 75, job.stderr + logs(job)
    assert run(job, "bf16+distributed", 2) == 0, job.stderr + logs(job)
    assert left(job.out) == calm
    job.assert_clean()


@pytest.mark.slow
def test_a_job_begins_with_a_checkpoint_of_megatrons(job: FtJob) -> None:
    """It is read once: afterwards the job goes on from its own iterations."""
    assert run(job, "saves+plain", 1) == 0, job.stderr + logs(job)
    checkpoint = (job.out / "checkpoint.pt").read_bytes()
    ends = []
    for name, faults in (("longer+plain", ""), ("longer", "step 0 14; step 0 16")):
        prepare_second_run(job, name)
        job.out.mkdir()
        (job.out / "checkpoint.pt").write_bytes(checkpoint)
        assert run(job, name, 1, faults) == 0, job.stderr + logs(job)
        ends.append(left(job.out))
    assert len(job.fired()) == 2
    assert sorted(ends[1]["losses_0"]) == [str(iteration) for iteration in range(12, 24)]  # type: ignore[call-overload]
    assert ends[0] == ends[1]
    assert logs(job).count("is not read: the job goes on from its own iteration") == 2


@pytest.mark.slow
def test_an_evaluation_that_is_not_made_again_is_told(job: FtJob) -> None:
    """The training is exact, and later evaluations are not those of an undisturbed run."""
    assert run(job, "evaluate+plain", 1) == 0, job.stderr + logs(job)
    calm = left(job.out)
    prepare_second_run(job)
    assert run(job, "evaluate", 1, "step 0 3; evaluation 0 4") == 0, job.stderr + logs(job)
    assert logs(job).count("the evaluation of iteration 4 comes behind the save_checkpoint_if_needed()") == 1
    losses, before = left(job.out)["losses_0"], calm["losses_0"]
    assert isinstance(losses, dict)
    assert isinstance(before, dict)
    assert "evaluation_4" not in losses
    trained = [str(iteration) for iteration in range(12)]
    assert [losses[one] for one in trained] == [before[one] for one in trained]


@pytest.mark.refused("Megatron", "other groups of ranks")
@pytest.mark.slow
def test_other_groups_of_ranks_are_refused(job: FtJob) -> None:
    start(job, "tensor+slow", 2)
    job.wait_step(3)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    assert run(job, "fp32", 2) == 1
    assert "cannot resume: the groups of ranks have the sizes and places" in logs(job)
    assert "'tensor_model_parallel': 2" in logs(job)


@pytest.mark.refused("Megatron", "another number of ranks that split the state")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "ranks", "now"), [("tensor", 2, 4), ("pipeline", 4, 2), ("distributed", 2, 1), ("experts", 2, 4)]
)
def test_another_number_of_ranks_is_refused(style: str, ranks: int, now: int, job: FtJob) -> None:
    """What each rank has saved as its own is no other rank's: attach() refuses it, where Megatron's calls do not."""
    start(job, f"{style}+slow", ranks)
    job.wait_step(3)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    assert run(job, style, now) == 1
    assert f"start with {ranks} ranks" in logs(job)
    if style == "distributed":
        said = "the shards of the distributed optimizer were saved by 2 ranks, and this job has 1"
        assert f"cannot resume: {said}; give load_checkpoint(..., concat=True), which merges them" in logs(job)


def stopped(job: FtJob, style: str, ranks: int, step: int, faults: str = "") -> None:
    """Runs until a step, and is told to stop there."""
    start(job, f"{style}+slow", ranks, faults)
    job.wait_step(step)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait(150) == 75, job.stderr + logs(job)


def gathered(job: FtJob) -> dict[str, list[list[str]]]:
    """The whole state of each optimizer, as Megatron has gathered it: iteration, digest, number of ranks, and when."""
    paths = sorted(job.out.glob("gathered_*"))
    return {path.name: [line.split() for line in path.read_text().splitlines()] for path in paths}


@pytest.mark.slow
@pytest.mark.exact("Megatron", "the distributed optimizer's state, merged for another number of ranks (`concat=True`)")
@pytest.mark.parametrize(
    ("style", "ranks"),
    [
        ("bf16+distributed", (2, 1, 4)),
        pytest.param("distributed", (2, 1, 4), marks=pytest.mark.slow),
        pytest.param("fp16+distributed+workers", (3, 2, 3), marks=pytest.mark.slow),
        pytest.param("fp16+distributed+skips", (2, 1, 2), marks=pytest.mark.slow),
        pytest.param("tensor+bf16+distributed", (2, 4, 2), marks=pytest.mark.slow),
        pytest.param("pipeline+bf16+distributed", (4, 2, 4), marks=pytest.mark.slow),
        pytest.param("interleaved+bf16+distributed", (2, 4, 2), marks=pytest.mark.slow),
        pytest.param("experts+bf16+distributed", (4, 2, 4), marks=pytest.mark.slow),
    ],
)
def test_shards_are_merged_for_another_number_of_ranks(style: str, ranks: tuple[int, int, int], job: FtJob) -> None:
    """Masters, slots and weights are those of the stop, bit for bit, and go on to be, also where a rank is killed then.

    Taken out: where stretches are taken from the beginning of a shard, masters are not loaded, or each rank stands for
    rank 0, the state is another one; without slots, with the shards of the rank for which one stands, or without
    `stands_for` the job ends. The values of groups: Megatron's scheduler sets them again, see test_refused.py.
    """
    style = f"{style}+concat+gathers"
    first, second, third = ranks
    stopped(job, style, first, 3)
    stopped(job, style, second, 7, "step 0 *")
    assert run(job, style, third) == 0, job.stderr + logs(job)
    assert len(job.fired()) == 1
    for name, lines in gathered(job).items():
        digests: dict[str, str] = {}
        for iteration, digest, *_ in lines:
            assert digests.setdefault(iteration, digest) == digest, (name, iteration, lines)
        loads = [line for line in lines if line[3] == "loaded"]
        assert [int(line[2]) for line in loads] == [second, second, third]
        assert [line[4] for line in loads[:2]] == (["0", "0"] if "skips" in style else ["1", "1"]), "no optimizer step"
        assert sorted(map(int, digests)) == list(range(1, 13))
    for before, now in ((first, second), (second, third)):
        said = f"optimizer, which {before} ranks had saved, are merged and cut anew for {now}"
        assert logs(job).count(said) == 1
    assert logs(job).count("from here on the numbers are not those of a run of") == 2
    job.assert_clean()


@pytest.mark.slow
def test_only_the_number_of_data_parallel_ranks_may_change(job: FtJob) -> None:
    """concat=True merges no other groups; and where as many ranks go on as have saved, it merges nothing."""
    stopped(job, "tensor+bf16+distributed+concat", 2, 3)
    assert run(job, "bf16+distributed+concat", 4) == 1
    assert "cannot resume: the groups of ranks have the sizes and places" in logs(job)
    assert run(job, "tensor+bf16+distributed+concat", 2) == 0, job.stderr + logs(job)
    assert "are merged" not in logs(job)
    job.assert_clean()


@pytest.mark.slow
def test_a_call_before_the_counts_is_refused(job: FtJob) -> None:
    assert run(job, "early", 1) == 1
    assert "save_checkpoint_if_needed() was called with iteration 0 behind iteration 0; call it once" in logs(job)
    assert len(job.events("attempt_started")) == 1


def kept(job: FtJob) -> list[int]:
    return sorted(step for step, _ in layout.list_iterations(job.run_dir / "checkpoints"))


def told(job: FtJob) -> str:
    """What is said of the arguments, once in an attempt."""
    (line, *_) = [line for line in logs(job).splitlines() if "initialize_easyckpt" in line]
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "saved", "left", "resumed"),
    [
        ("longer", [5, 10, 15, 20, 24], [5, 10, 15, 20, 24], 8),
        pytest.param("longer+two", [5, 10, 15, 20, 24], [20, 24], 8, marks=pytest.mark.slow),
    ],
)
def test_exactly_the_iterations_of_the_call_are_saved(
    style: str, saved: list[int], left: list[int], resumed: int, job: FtJob
) -> None:
    """Without an option; a rank is killed in between. Taken out: asked for by job.save() they are 8, 13 and 18."""
    start(job, style, 2, "step 1 9", script_asks=True)
    assert job.wait(150) == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == ["step 1 9"]
    assert [event["step"] for event in job.events("checkpoint_committed")] == saved
    assert kept(job) == left
    assert job.events("resumed")[1]["step"] in ((resumed,) if "two" in style else (8, 9))
    for words in ("a snapshot in memory at each multiple", "a checkpoint at each multiple", "as many checkpoints"):
        assert words in told(job)
    job.assert_clean()


@pytest.mark.slow
def test_options_hold_in_the_place_of_the_arguments(job: FtJob) -> None:
    start(job, "slow", 1, "", "--storage-interval", "off", "--keep", "7")
    assert job.wait() == 0, job.stderr + logs(job)
    for words in (
        "save_mem_interval=1: not used, as the job was given --memory-interval 1, which holds",
        "save_storage_interval=5: not used, as the job was given --storage-interval off, which holds",
        "max_ckpt_num=5: not used, as the job was given --keep 7, which holds",
        "log_file_path='./test.log': each save and deletion of this run is appended to it",
    ):
        assert words in told(job)
    committed = job.events("checkpoint_committed")
    assert [event["step"] for event in committed] == [12]
    logged = (job.home / "test.log").read_text()
    for event in committed:
        assert f"Z saved step {event['step']} ({event['why']}, {event['bytes']} bytes) to {event['path']}\n" in logged
    for event in job.events("checkpoint_deleted"):
        assert f"Z deleted step {event['step']}, {event['path']} (retention, " in logged


@pytest.mark.slow
def test_multiples_are_those_of_megatrons_iterations(job: FtJob) -> None:
    """Also where the job begins with a checkpoint of Megatron-LM at iteration 12: 15 and 20 are steps 3 and 8."""
    assert run(job, "saves+plain", 1) == 0, job.stderr + logs(job)
    checkpoint = (job.out / "checkpoint.pt").read_bytes()
    prepare_second_run(job, "longer")
    job.out.mkdir()
    (job.out / "checkpoint.pt").write_bytes(checkpoint)
    assert run(job, "longer", 1) == 0, job.stderr + logs(job)
    assert [event["step"] for event in job.events("checkpoint_committed")] == [3, 8, 12]
