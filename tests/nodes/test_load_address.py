"""Jobs of two nodes that begin with what lies at an address: every node brings it, the same, before ranks start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.support.agents import PATIENT, NodesJob
from tests.support.harness import JOBS, TINY, FtJob
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores import index
from ftlaunch_contract.checkpoint import layout

TOKEN = "a token that is long enough"
SHAPES = JOBS / "shapes.py"
FAILS_EARLY = """
import os, pathlib, runpy, sys, time
if (os.environ["RANK"], os.environ["FTLAUNCH_ATTEMPT"]) == ("3", "0"):
    while '"event": "loaded"' not in pathlib.Path(os.environ["JOURNAL"]).read_text():
        time.sleep(0.01)
    sys.exit("rank 3 fails before it begins")
tiny = os.environ["TINY"]
sys.path.insert(0, os.path.dirname(tiny))
runpy.run_path(tiny, run_name="__main__")
"""


class LoadJob(NodesJob):
    """A job of two nodes, and a bucket with the checkpoints of another job."""

    def __init__(self, home: Path) -> None:
        """Prepare the job without starting agents."""
        super().__init__(home)
        self.env["FTLAUNCH_TOKEN"] = TOKEN
        self.bucket = home / "bucket"
        self.address = f"file://{self.bucket}"
        self.mine = home / "mine"
        """the run dir of the second node"""
        self.options = (*self.options, *PATIENT, "--peer-interval", "0", "--checkpoint-dir", f"file://{home}/own")

    def fill_bucket(self) -> int:
        """Have another job, of as many ranks, put checkpoints into the bucket. Return the newest step."""
        (self.home / "other").mkdir()
        other = FtJob(self.home / "other")
        words = ("--out", str(other.out), "--steps", "12")
        other.start("--checkpoint-dir", self.address, "--storage-interval", "4", args=words, ranks=4)
        assert other.wait() == 0, other.stderr
        other.dispose()
        return max(index.parse((self.bucket / index.NAME).read_bytes()).steps)

    def begin_head(self, *more: str, load: str | None = None) -> None:
        """Start the first node's agent, and wait for its head, which has brought the checkpoint then."""
        starts = len(self.events("job_started"))
        self.agent("--node-rank", "0", "--load-checkpoint", load or self.address, *more)
        self.wait_event("job_started", starts + 1)

    def begin_other(self, *more: str, load: str | None = None, shares: bool = False) -> None:
        """Start the agent of the second node. shares: it shares the run dir."""
        where = () if shares else ("--run-dir", str(self.mine))
        self.agent("--node-rank", "1", "--load-checkpoint", load or self.address, *where, *more)


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[LoadJob]:
    job = LoadJob(tmp_path)
    yield job
    job.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(
    "shares", [pytest.param(False, id="apart"), pytest.param(True, id="shared", marks=pytest.mark.slow)]
)
def test_both_nodes_begin_with_the_step_of_another_job_s_store(loading: LoadJob, alone: FtJob, shares: bool) -> None:
    """Taken out (`_have_nodes_load`): the ranks of the second node find nothing to begin with."""
    step = loading.fill_bucket()
    before = sorted(path for path in loading.bucket.rglob("*") if path.is_file())
    loading.begin_head()
    loading.begin_other(shares=shares)
    assert loading.codes() == [0, 0], loading.transcript
    assert f"brought step {step} from {loading.address} (" in loading.said(0)
    brings = f"bringing the checkpoint with which the job begins from {loading.address}"
    assert (brings in loading.said(1)) is not shares
    assert layout.iteration_dir(loading.mine / "loaded/bucket", step).is_dir() is not shares
    assert [event["step"] for event in loading.events("loaded")] == [step]
    assert loading.final() == alone.final()
    assert sorted(path for path in loading.bucket.rglob("*") if path.is_file()) == before, "it is only read"


@pytest.mark.slow
def test_a_node_that_has_it_brings_nothing_again(loading: LoadJob, alone: FtJob) -> None:
    """A rank fails before there is anything else to go on from."""
    step = loading.fill_bucket()
    loading.script = loading.home / "early.py"
    loading.script.write_text(FAILS_EARLY)
    loading.env |= {"JOURNAL": str(loading.run_dir / "events.jsonl"), "TINY": str(TINY)}
    loading.begin_head()
    loading.begin_other()
    assert loading.codes() == [0, 0], loading.transcript
    assert loading.events("incident"), "the rank has failed"
    assert [event["step"] for event in loading.events("loaded")] == [step, step]
    assert loading.said(1).count("bringing the checkpoint") == 1
    assert loading.final() == alone.final()


@pytest.mark.slow
def test_a_node_with_what_an_earlier_start_has_brought_verifies_it(loading: LoadJob) -> None:
    step = loading.fill_bucket()
    loading.words = ("--steps", "1000", "--step-time", "0.1")
    loading.begin_head()
    loading.begin_other()
    loading.wait_event("loaded")
    loading.dispose()
    brought = layout.iteration_dir(loading.mine / "loaded/bucket", step)
    written = (brought / layout.METADATA).stat().st_mtime_ns
    shutil.rmtree(loading.run_dir)
    shutil.rmtree(loading.home / "own", ignore_errors=True)
    loading.words = ("--steps", str(step + 2))
    loading.begin_head()
    loading.begin_other()
    assert loading.codes()[-2:] == [0, 0], loading.transcript
    assert (brought / layout.METADATA).stat().st_mtime_ns == written


@pytest.mark.slow
def test_what_was_brought_is_removed_once_the_job_has_its_own_state(loading: LoadJob, alone: FtJob) -> None:
    loading.fill_bucket()
    loading.words = ("--steps", "20")
    loading.begin_head()
    loading.begin_other()
    assert loading.codes() == [0, 0], loading.transcript
    for run_dir in (loading.run_dir, loading.mine):
        assert (run_dir / "loaded/bucket").is_dir()
    loading.words = ("--steps", "30")
    loading.begin_head()
    loading.begin_other()
    assert loading.codes()[-2:] == [0, 0], loading.transcript
    assert len(loading.events("loaded")) == 1
    for run_dir in (loading.run_dir, loading.mine):
        assert not (run_dir / "loaded").exists()
    assert loading.final() == alone.final()


@pytest.mark.slow
def test_every_node_begins_with_weights_in_a_bucket(loading: LoadJob) -> None:
    fill_with_weights(loading)
    loading.script = SHAPES
    loading.words = ("--kind", "ddp", "--steps", "2")
    loading.begin_head(load=f"{loading.address}/net")
    loading.begin_other(load=f"{loading.address}/net")
    assert loading.codes() == [0, 0], loading.transcript
    assert "took the weights of `model` (4 tensors)" in (loading.run_dir / "logs/attempt_0/rank_0.log").read_text()
    there = loading.mine / "loaded/net/model.safetensors"
    assert there.read_bytes() == (loading.bucket / "net/model.safetensors").read_bytes()


def fill_with_weights(job: LoadJob) -> None:
    torch.manual_seed(7)
    trained = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 6))
    (job.bucket / "net").mkdir(parents=True, exist_ok=True)
    save_file(trained.state_dict(), job.bucket / "net/model.safetensors")


@pytest.mark.slow
def test_a_bucket_that_changes_meanwhile_is_refused(loading: LoadJob) -> None:
    """Taken out (the comparison of digests): the ranks of one job begin with two models."""
    fill_with_weights(loading)
    address = f"{loading.address}/net"
    loading.script = SHAPES
    loading.words = ("--kind", "ddp", "--steps", "2")
    loading.begin_head(load=address)
    model = loading.bucket / "net/model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    loading.begin_other(load=address)
    assert 1 in loading.codes(), loading.transcript
    assert f"cannot begin with {address}: node 1 (" in loading.transcript
    assert "it has changed since the head of the job has brought it; start the job again" in loading.transcript
    assert not (loading.mine / "loaded/net").exists()
    assert not loading.events("loaded")


@pytest.mark.slow
def test_a_step_that_is_gone_meanwhile_names_the_node(loading: LoadJob) -> None:
    step = loading.fill_bucket()
    loading.begin_head()
    found = index.parse((loading.bucket / index.NAME).read_bytes()).steps[step]
    for name in found.objects:
        (loading.bucket / name).unlink()
    loading.begin_other()
    assert 1 in loading.codes(), loading.transcript
    assert f"cannot begin with {loading.address}: node 1 (" in loading.transcript
    assert f"step {step} there is damaged: " in loading.transcript
    assert "is not in " in loading.transcript


@pytest.mark.slow
def test_a_node_with_another_address_is_named(loading: LoadJob) -> None:
    loading.fill_bucket()
    loading.begin_head()
    loading.begin_other(load=f"file://{loading.home}/elsewhere")
    assert 1 in loading.codes(), loading.transcript
    assert f"the head begins with {loading.address}, and this node was given file://" in loading.transcript


def test_what_the_head_cannot_bring_is_bad_usage(loading: LoadJob) -> None:
    loading.agent("--node-rank", "0", "--load-checkpoint", "file:///nowhere/at/all")
    wait_for(lambda: loading.supervisors[0].poll() is not None, "the end of the agent")
    assert loading.codes() == [2], loading.transcript
    assert "cannot load file:///nowhere/at/all: there is no such object, and none below it" in loading.said(0)
    assert not loading.events("job_started")
