"""What a Slurm step says about nodes, and when it is listened to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ftlaunch.spec.job_spec import JobSpec, SpecError
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.schedulers.scheduler import Step
from ftlaunch_contract.schedulers.slurm import Slurm

BATCH = {"SLURM_JOB_ID": "812", "SLURM_JOB_NUM_NODES": "3", "SLURM_NNODES": "3", "SLURM_NODEID": "0",
         "SLURM_JOB_NODELIST": "n[007-009]", "SLURM_NTASKS": "3"}  # fmt: skip
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1",
        "SLURM_STEP_NODELIST": "n[008-009]", "SLURM_RESTART_COUNT": "0"}  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def ask(flags: Mapping[str, str] | None = None, environ: Mapping[str, str] = STEP) -> JobSpec:
    return resolve("train.py", [], flags or {}, environ)


def slurm_step(nodes: int, rank: int | None, first_host: str, hosts_in: str, job: str) -> Step:
    return Step(nodes, "SLURM_STEP_NUM_NODES", rank, "SLURM_NODEID", first_host, hosts_in, job, "SLURM_JOB_ID")


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in STEP.items() if name not in names}


@pytest.mark.parametrize(
    ("environ", "step"),
    [
        (STEP, slurm_step(2, 1, "n008", "SLURM_STEP_NODELIST", "slurm-812")),
        ({**without("SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST"), "SLURM_STEP_NUM_TASKS": "3"},
         slurm_step(3, 1, "n007", "SLURM_JOB_NODELIST", "slurm-812")),
        ({**STEP, "SLURM_ARRAY_JOB_ID": "800", "SLURM_ARRAY_TASK_ID": "4"},
         slurm_step(2, 1, "n008", "SLURM_STEP_NODELIST", "slurm-800_4")),
        (without("SLURM_NODEID"), slurm_step(2, None, "n008", "SLURM_STEP_NODELIST", "slurm-812")),
        ({}, None),
        (BATCH, None),
        (without("SLURM_STEP_ID"), None),
        (without("SLURM_STEP_NUM_TASKS"), None),
        (without("SLURM_JOB_ID"), None),
        (without("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), None),
        ({**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "many"}, None),
    ],
)  # fmt: skip
def test_the_step_of_a_task(environ: dict[str, str], step: Step | None) -> None:
    assert Slurm().step(environ) == step


def test_a_requeued_job_goes_on_under_the_same_name() -> None:
    assert Slurm().step({**STEP, "SLURM_RESTART_COUNT": "3"}) == Slurm().step(STEP)


def test_everything_comes_from_the_step_where_nobody_says_otherwise() -> None:
    spec = ask()
    assert (spec.nodes, spec.launch.run_id) == (NodesSpec(2, 2, 1, "n008", 29400, "c10d"), "slurm-812")
    assert spec.job_id == ask(environ={}).job_id, "a job that is submitted again goes on where it was"
    assert ask(environ=BATCH) == ask(environ={})


@pytest.mark.parametrize("environ", [STEP, BATCH])
def test_the_tasks_of_an_array_are_different_jobs(environ: dict[str, str]) -> None:
    """Taken out: the second task finds the last checkpoint of the first, and ends at once as if it had trained."""
    tasks = [{**environ, "SLURM_ARRAY_JOB_ID": "800", "SLURM_ARRAY_TASK_ID": task} for task in ("1", "2")]
    first, second = (ask(environ=task) for task in tasks)
    assert (first.job_id, second.job_id) == (f"{ask().job_id}-1", f"{ask().job_id}-2")
    assert first.run_dir != second.run_dir
    assert ask(environ={**tasks[0], "SLURM_ARRAY_JOB_ID": "900"}).job_id == first.job_id, "submitted again"
    assert ask({"job_id": "mine"}, tasks[0]).job_id == "mine"


@pytest.mark.parametrize(
    ("flags", "nodes"),
    [
        ({"nnodes": "1"}, NodesSpec()),
        ({"standalone": "true"}, NodesSpec()),
        ({"nnodes": "1:2"}, NodesSpec(1, 2, 1, "n008", 29400, "c10d")),
        ({"rdzv_endpoint": "h:5", "rdzv_id": "r"}, NodesSpec(2, 2, 1, "h", 5, "c10d")),
        ({"master_addr": "m"}, NodesSpec(2, 2, 1, "m", 29500, "static")),
        ({"rdzv_backend": "static"}, NodesSpec(2, 2, 1, "n008", 29500, "static")),
        ({"node_rank": "0"}, NodesSpec(2, 2, 0, "n008", 29400, "c10d")),
    ],
)  # fmt: skip
def test_what_a_person_says_wins(flags: dict[str, str], nodes: NodesSpec) -> None:
    assert ask(flags).nodes == nodes


def test_a_node_beyond_those_wanted_has_no_place_of_its_own() -> None:
    five = {**STEP, "SLURM_STEP_NUM_NODES": "5", "SLURM_STEP_NUM_TASKS": "5", "SLURM_NODEID": "4"}
    assert ask({"nnodes": "4"}, five).nodes == NodesSpec(4, 4, None, "n008", 29400, "c10d")


def test_a_task_for_each_gpu_is_refused_with_what_to_write() -> None:
    with pytest.raises(SpecError) as refused:
        ask(environ={**STEP, "SLURM_STEP_NUM_TASKS": "8"})
    assert str(refused.value) == (
        "cannot start in a Slurm step of 8 tasks on 2 nodes: ftlaunch starts the ranks of a node itself; write"
        " `srun --ntasks-per-node=1` and `--nproc-per-node`"
    )
    one = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "8"}
    with pytest.raises(SpecError, match="8 tasks on 1 node: ") as refused:
        ask(environ=one)
    assert ask({"nnodes": "1"}, one).nodes == NodesSpec()
    assert ask({"nnodes": "2", "rdzv_endpoint": "h"}, one).nodes == NodesSpec(2, 2, None, "h")


def test_a_list_of_hosts_that_cannot_be_read_is_refused_where_it_is_needed() -> None:
    broken = {**STEP, "SLURM_STEP_NODELIST": "n[008-"}
    with pytest.raises(SpecError) as refused:
        ask(environ=broken)
    assert str(refused.value) == "cannot use SLURM_STEP_NODELIST=n[008-: 'n[008-' is no host or range of hosts"
    assert ask({"nnodes": "2", "rdzv_endpoint": "h"}, broken).nodes.address == "h"
