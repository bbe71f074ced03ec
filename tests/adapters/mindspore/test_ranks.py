"""Two ranks of MindSpore's that average their gradients: killed, frozen, stopped, they end as undisturbed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.framework_results import logs
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.mindspore_jobs import PATHS, PYTHON, left_by, said, start, start_alone, start_by_msrun
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

Undisturbed = Callable[[str], list[object]]

STORIES = [
    pytest.param("graph+noise", "step 1 5; step 0 20", id="in a step"),
    pytest.param("pynative+functional+fit", "eval 0 1; epoch_end 1 2; train_end 0 0", id="op by op, in an evaluation"),
    pytest.param("graph+augment", "begin 1 1; step 1 24", id="random data", marks=pytest.mark.slow),
]


@pytest.mark.exact("MindSpore", "2 ranks with data_parallel, under ftlaunch or msrun")
@pytest.mark.parametrize(("style", "faults"), STORIES)
def test_killed_and_as_undisturbed(style: str, faults: str, job: FtJob, two_undisturbed: Undisturbed) -> None:
    """Taken out: without the rank in TrainingState._key two tensors have one name, and nothing is committed."""
    start(job, style, ranks=2, faults=faults)
    assert job.wait(150) == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left_by(2, job.out) == two_undisturbed(style)
    assert [event["source"] for event in job.events("resumed")[1:]] == ["memory"] * len(job.fired())
    job.assert_clean()


def test_from_storage(job: FtJob, two_undisturbed: Undisturbed) -> None:
    """The snapshots of one rank are lost: what the other still has in memory is of no use by itself."""
    start(job, "graph", "--storage-interval", "3", ranks=2, faults="lost 1 12; begin 0 *")
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert job.fired() == ["lost 1 12 0", "begin 0 * 1"]
    assert [event["source"] for event in job.events("resumed")[1:]] == ["storage", "memory"]
    assert left_by(2, job.out) == two_undisturbed("graph")
    job.assert_clean()


def test_a_frozen_rank_is_replaced(job: FtJob, two_undisturbed: Undisturbed) -> None:
    start(job, "graph", "--hang-timeout", "5s", "--startup-timeout", "100s", ranks=2, faults="step 1 9 freeze")
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert job.fired() == ["step 1 9 freeze 0"]
    assert [(one["kind"], one["rank"]) for one in job.events("incident")] == [("hang", 1)]
    assert left_by(2, job.out) == two_undisturbed("graph")
    job.assert_clean()


def test_a_killed_scheduler_costs_a_restart_at_most(job: FtJob, two_undisturbed: Undisturbed) -> None:
    start(job, "graph+slow", "--hang-timeout", "10s", "--startup-timeout", "100s", ranks=2)
    job.wait_step(5)
    (scheduler,) = [pid for pid in carriers(job.tag) if b"scheduler.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(scheduler, signal.SIGKILL)
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert left_by(2, job.out) == two_undisturbed("graph")
    job.assert_clean()


@pytest.mark.parametrize("whom", ["the supervisor", "a rank"])
def test_sigterm_and_the_same_command_again(whom: str, job: FtJob, two_undisturbed: Undisturbed) -> None:
    start(job, "graph+slow", ranks=2)
    job.wait_step(7)
    os.kill(job.supervisor.pid if whom == "the supervisor" else job.pids()[1], signal.SIGTERM)
    assert job.wait(60) == 75, job.stderr + logs(job)
    (saved,) = job.run_dir.glob("checkpoints/iteration_*")
    assert len(list(saved.glob("*-model-*"))) == 2
    start(job, "graph", ranks=2)
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert job.wait_event("resumed", len(job.events("resumed")))["step"] == int(saved.name[10:]) >= 7
    assert left_by(2, job.out) == two_undisturbed("graph")
    job.assert_clean()


def test_a_killed_supervisor_and_the_same_command_again(job: FtJob, two_undisturbed: Undisturbed) -> None:
    """Taken out: without the thread in cluster/scheduler.py the scheduler is left when all else has ended."""
    start(job, "graph+slow", ranks=2)
    job.wait_step(7)
    job.supervisor.kill()
    job.supervisor.wait()
    wait_for(lambda: not carriers(job.tag), "the end of all processes of the job", 10.0)
    start(job, "graph", ranks=2)
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert job.wait_event("resumed", len(job.events("resumed")))["source"] == "memory"
    assert left_by(2, job.out) == two_undisturbed("graph")
    job.assert_clean()


def test_msrun_sigterm_and_the_same_command_again(job: FtJob, two_undisturbed: Undisturbed) -> None:
    """The ranks save by themselves. Taken out: without roles.adopt() each of them takes itself for the only one."""
    process = start_by_msrun(job, "graph+slow")
    wait_for((job.out / "0/losses").exists, "the first step", 60.0)
    ranks = [pid for pid in carriers(job.tag) if _environment(pid).get("MS_ROLE") == "MS_WORKER"]
    os.kill(ranks[0], signal.SIGTERM)
    assert process.wait(60) == 1, said(job)  # msrun's own, where a rank has ended otherwise than by 0
    (saved,) = (job.out / "checkpoints").glob("iteration_*")
    assert len(list(saved.glob("net-model-*"))) == 2
    process = start_by_msrun(job, "graph")
    assert process.wait(120) == 0, said(job)
    assert left_by(2, job.out) == two_undisturbed("graph")
    assert len((job.out / "0/losses").read_text().splitlines()) == 24, "a step was made twice"


def test_another_number_of_ranks_goes_on_where_all_hold_the_same(job: FtJob) -> None:
    """Two ranks become one, and then three would need another batch."""
    start(job, "graph+plain_layers+slow", ranks=2)
    job.wait_step(7)
    os.kill(job.supervisor.pid, signal.SIGTERM)
    assert job.wait(60) == 75, job.stderr + logs(job)
    start(job, "graph+plain_layers", ranks=3)
    assert job.wait(120) != 0
    assert "2 ranks have saved step" in job.stderr and "the step would stand for other data" in job.stderr, job.stderr
    start(job, "graph+plain_layers")
    assert job.wait(120) == 0, job.stderr + logs(job)
    resumed = job.wait_event("resumed", len(job.events("resumed")))
    assert (resumed["source"], resumed["step"] >= 7) == ("storage", True)
    assert "2 ranks have saved step" in job.stderr + logs(job), job.stderr
    assert "this run is not exact from here on" in job.stderr + logs(job)
    steps = [int(line.split()[0]) for line in (job.out / "losses").read_text().splitlines()]
    assert steps == list(range(resumed["step"] + 1, 25))
    job.assert_clean()


@pytest.mark.refused("MindSpore", "another number of ranks that held different values, several machines")
def test_another_number_of_ranks_is_refused_where_they_held_different_values(job: FtJob) -> None:
    """The averages of a norm are each rank's own. Taken out: without the comparison those of rank 0 are taken."""
    start(job, "graph+slow", ranks=2)
    job.wait_step(7)
    os.kill(job.supervisor.pid, signal.SIGTERM)
    assert job.wait(60) == 75, job.stderr + logs(job)
    start(job, "graph")
    assert job.wait(120) != 0
    told = job.stderr + logs(job)
    assert "ranks 0 and 1 held different values of norm.moving_" in told, told
    assert "start it with 2 ranks" in told


_SCALES = """
import sys
import numpy as np
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.shared_keys import own_key
from ftlaunch_mindspore.saving.other_ranks import take_over
data = {"seed": 7, "generators": None}
about = {"parameters": {}, "random": None, "data": data}
trees = [{"training": {"loss_scale": float(scale), **about}} for scale in sys.argv[1:]]
arrays = [{own_key("model.weight", rank): np.zeros(1, np.float32)} for rank in range(2)]
try:
    take_over(trees, arrays, 0, 1)
except Damaged as refused:
    print(refused)
else:
    print("taken over")
"""


@pytest.mark.parametrize(
    ("scales", "says"),
    [
        (("2", "2"), "taken over"),
        (
            ("2", "4"),
            "2 ranks have saved it, and this job has 1: they had different loss scales; start it with 2 ranks, or give"
            " --fresh to start over",
        ),
    ],
)
def test_another_number_of_ranks_is_refused_where_they_had_different_loss_scales(
    scales: tuple[str, str], says: str
) -> None:
    """Taken out: without the comparison the scale of rank 0 is taken."""
    env = {**os.environ, **PATHS}
    done = subprocess.run([PYTHON, "-c", _SCALES, *scales], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == [says], done.stderr


def test_ranks_on_several_machines_are_refused(job: FtJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    process = start_alone(job, "graph+lonely")
    assert process.wait(60) == 1
    assert "its 4 ranks are on several machines" in said(job)


def logs_of_msrun(job: FtJob) -> str:
    return "".join(path.read_text() for path in sorted((job.home / "msrun").glob("worker_*")))


def _environment(pid: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)
