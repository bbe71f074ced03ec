"""What is asked of Ray, and what each agent is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.cli.options import read_command_line
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.spec.resolve import resolve
from ftlaunch_ray.command import OWN_OPTIONS, agent_environ
from ftlaunch_ray.job import RayJob, ray_job

SCRIPT = str(Path(__file__).parents[2] / "jobs" / "tiny.py")


def job(*words: str, **environ: str) -> RayJob:
    request = read_command_line([*words, SCRIPT, "--out", "x"], OWN_OPTIONS)
    variables = agent_environ(environ)
    return ray_job(resolve(request.target, request.args, request.flags, variables), request, variables)


def test_nodes_without_an_endpoint_meet_at_the_first_one() -> None:
    asked = job("--nnodes", "2", "--spare", "1", "--nproc-per-node", "4", "--grace", "5s")
    assert asked.bundles == [{"CPU": 4.0}] * 3
    assert asked.meets_at_first
    rest = ["--nproc-per-node=4", "--grace=5s", SCRIPT, "--out", "x"]
    first = Endpoint("10.0.0.1", 4000)
    assert asked.agent_words(1, first) == ["--nnodes=2", "--node-rank=1", "--rdzv-endpoint=10.0.0.1:4000", *rest]
    assert asked.agent_words(None, first) == ["--nnodes=2", "--rdzv-endpoint=10.0.0.1:4000", *rest]


def test_an_endpoint_that_was_given_is_kept() -> None:
    asked = job("--nnodes", "2:3", "--rdzv-endpoint", "node7:29500")
    assert len(asked.bundles) == 3
    assert not asked.meets_at_first
    assert asked.agent_words(None, None)[:2] == ["--nnodes=2:3", "--rdzv-endpoint=node7:29500"]


def test_each_rank_gets_a_gpu_where_that_is_asked_for() -> None:
    assert job("--use-gpu", "--nproc-per-node", "8").bundles == [{"CPU": 8.0, "GPU": 8.0}]


def test_no_agent_hears_of_slurm_or_of_the_endpoint_that_is_none() -> None:
    asked = job("--nnodes", "2", SLURM_JOB_ID="7", SLURM_STEP_NUM_NODES="4", SLURM_NODEID="1", NCCL_DEBUG="INFO")
    assert asked.environ == {"NCCL_DEBUG": "INFO"}
    assert asked.spec.nodes.rank is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nproc-per-node", "cpu"], "cannot use `--nproc-per-node cpu`: Ray reserves what is asked for"),
        (["--hosts", "a,b"], "cannot use `--hosts` or `--hostfile`: Ray chooses the nodes"),
        (["--nnodes", "2", "--node-rank", "1"], "cannot use `--node-rank 1`: Ray gives each node a place of its own"),
        (["--spare", "1"], "cannot use `--spare 1`: a job of one node has no node that stands by"),
        (["--nnodes", "2", "--spare", "-1"], "cannot use `--spare -1`: it must be a whole number, 0 or more"),
        (["--nnodes", "2", "--rdzv-backend", "etcd"], "cannot use `--rdzv-backend etcd`: where is etcd?"),
        (["--spar", "1"], "cannot use `--spar`: there is no such option; did you mean `--spare`?"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(words: list[str], told: str) -> None:
    with pytest.raises(SpecError, match="cannot") as refused:
        job(*words)
    assert str(refused.value).startswith(told)
