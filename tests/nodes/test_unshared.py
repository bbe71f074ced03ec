"""Nodes whose run dirs are their own: the job trains as on a shared one, and every node knows what has happened."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.agents import PATIENT, NodesJob
from tests.support.ctl import ftctl
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout

TOKEN = "a token that is long enough"


class ApartJob(NodesJob):
    """A job of two nodes: the head's, with the run dir of the job, and one with a run dir of its own."""

    def __init__(self, home: Path) -> None:
        """Prepare the job without starting agents."""
        super().__init__(home)
        self.env["FTLAUNCH_TOKEN"] = TOKEN
        self.mine = home / "mine"
        """the run dir of the second node"""

    def begin(self, *more: str) -> list[object]:  # type: ignore[override]
        """Start the agent of the first node, wait for its head, and start the other's."""
        first = self.agent("--node-rank", "0", *more)
        self.wait_event("job_started")
        return [first, self.agent("--node-rank", "1", "--run-dir", str(self.mine), *more)]


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[ApartJob]:
    job = ApartJob(tmp_path)
    yield job
    job.dispose()


@pytest.mark.slow
def test_the_head_judges_what_a_rank_has_left_elsewhere(apart: ApartJob, alone: FtJob) -> None:
    """Taken out (`send_leavings`): the head has no log of rank 3, and cannot name the exception."""
    apart.env["FAULT"] = "exception 3 12"
    apart.begin()
    assert apart.codes() == [0, 0], apart.transcript
    assert apart.fired()
    assert "the nodes do not all share the run dir: each of them keeps its own logs" in apart.said(0)
    (incident,) = apart.events("incident")
    assert incident["rank"] == 3
    assert "ZeroDivisionError" in json.dumps(incident), incident
    here = apart.run_dir / "logs/attempt_0/rank_3.log"
    there = apart.mine / "logs/attempt_0/rank_3.log"
    assert "ZeroDivisionError: division by zero" in there.read_text()
    assert here.read_bytes() == there.read_bytes()
    apart.assert_same_end(alone)


@pytest.mark.long
def test_every_node_has_the_journal_and_what_a_head_needs(apart: ApartJob, alone: FtJob) -> None:
    apart.env["FAULT"] = "sigkill 1 12"
    (apart.mine / "logs").mkdir(parents=True)
    (apart.mine / "events.jsonl").write_text('{"event": "job_started", "job_id": "of last week"}\n')
    apart.begin()
    wait_for((apart.mine / "plan.json").exists, "the plan on the second node")
    assert apart.codes() == [0, 0], apart.transcript
    assert apart.fired()
    assert (apart.mine / "events.jsonl").read_bytes() == (apart.run_dir / "events.jsonl").read_bytes()
    assert "of last week" in (apart.mine / "events.before.jsonl").read_text()
    assert (apart.mine / "seed.json").read_bytes() == (apart.run_dir / "seed.json").read_bytes()
    assert not (apart.mine / "plan.json").exists(), "nothing is to be adopted any more"
    code, out, err = ftctl("report", apart.mine, cwd=apart.home)
    assert (code, err) == (0, ""), err
    assert "rank 1" in out
    apart.assert_same_end(alone)


@pytest.mark.slow
def test_a_run_dir_in_which_another_job_works_is_left_alone(apart: ApartJob, alone: FtJob, tmp_path: Path) -> None:
    """Taken out (`living_holder`): the other job's journal is put aside, and its seed and limits are overwritten."""
    (tmp_path / "other").mkdir()
    other = FtJob(tmp_path / "other")
    try:
        other.start(args=("--out", str(other.out), "--steps", "2000", "--step-time", "0.05"))
        other.wait_step(3)
        apart.mine = other.run_dir
        seed = (other.run_dir / layout.SEED).read_bytes()
        apart.begin()
        assert apart.codes() == [0, 0], apart.transcript
        assert (
            f"keeps no copies of the head's run dir: a running supervisor (pid {other.supervisor.pid})" in apart.said(1)
        )
        assert {one["job_id"] for one in other.events("job_started")} == {other.job_id}
        assert (other.run_dir / layout.SEED).read_bytes() == seed
        assert not (other.run_dir / "events.before.jsonl").exists()
        assert other.supervisor.poll() is None
        apart.assert_same_end(alone)
    finally:
        other.dispose()


@pytest.mark.slow
def test_a_journal_of_an_earlier_job_is_put_aside(apart: ApartJob) -> None:
    apart.mine.mkdir()
    (apart.mine / "events.jsonl").write_text('{"event": "job_started", "job_id": "last week"}\n')
    apart.begin()
    assert apart.codes() == [0, 0], apart.transcript
    assert "last week" in (apart.mine / "events.before.jsonl").read_text()
    assert (apart.mine / "events.jsonl").read_bytes() == (apart.run_dir / "events.jsonl").read_bytes()


@pytest.mark.slow
def test_the_head_is_told_where_the_ranks_of_others_hang(apart: ApartJob) -> None:
    """Taken out (`send_autopsy`): the verdict knows nothing of rank 3, on which all others wait."""
    apart.env["FAULT"] = "deaf 3 12"
    apart.begin("--hang-timeout", "4s", "--max-restarts", "0")
    apart.codes()
    assert apart.fired()
    (incident,) = apart.events("incident")
    assert incident["rank"] == 3, incident
    autopsy = apart.run_dir / "autopsy/attempt_0"
    assert "time.sleep" in (autopsy / "rank_3.stack.txt").read_text() or (autopsy / "rank_3.proc.json").exists()
    assert (apart.mine / "autopsy/attempt_0/rank_3.proc.json").exists(), "collected there"


@pytest.mark.slow
def test_another_head_on_the_same_machine_goes_on(apart: ApartJob, alone: FtJob) -> None:
    """The second node must not start one of its own in its run dir, although the head's port is on its machine."""
    apart.words = ("--steps", "30", "--step-time", "0.1")
    apart.begin(*PATIENT)
    apart.wait_step(5)
    head = apart.head
    os.kill(head, signal.SIGKILL)
    apart.wait_event("job_started", 2)
    assert apart.head != head
    assert apart.codes() == [0, 0], apart.transcript
    assert not list((apart.mine / "head").glob("claim.*")), "no head has claimed anything there"
    assert not apart.events("incident"), apart.transcript
    apart.assert_same_end(alone)


@pytest.mark.slow
def test_a_sign_of_last_week_in_a_run_dir_of_its_own_is_nobodys(apart: ApartJob, alone: FtJob) -> None:
    """Taken out (`_is_sign_of_this_job`): the node ends with the code of that job once it has lost its head."""
    (apart.mine / "head").mkdir(parents=True)
    (apart.mine / "head/unshared").touch()
    sign = {"term": 9, "address": "127.0.0.1", "port": 1, "machine": "m", "pid": 1, "started": 1, "count": 5, "over": 7}
    (apart.mine / "head/sign.json").write_text(json.dumps(sign))
    apart.words = ("--steps", "30", "--step-time", "0.1")
    apart.begin()
    apart.wait_step(5)
    os.kill(apart.head, signal.SIGKILL)
    apart.wait_event("job_started", 2)
    assert apart.codes() == [0, 0], apart.transcript
    apart.assert_same_end(alone)


@pytest.mark.long
def test_nodes_without_a_token_in_common_are_told_the_three_ways(apart: ApartJob) -> None:
    del apart.env["FTLAUNCH_TOKEN"]
    apart.begin()
    wait_for(lambda: apart.supervisors[1].poll() is not None, "the end of the second agent", 30.0)
    assert apart.supervisors[1].returncode == 2, apart.transcript
    assert (
        f"does not accept this node's token (the file `token` in {apart.mine}): give all nodes the same FTLAUNCH_TOKEN,"
        " or a run dir that they share, or, where only you can reach their ports, `--rdzv-conf auth=none`"
    ) in apart.said(1)
    apart.supervisors[0].terminate()
    assert apart.codes()[1] == 2


@pytest.mark.slow
def test_nodes_may_do_without_a_token(apart: ApartJob, alone: FtJob) -> None:
    del apart.env["FTLAUNCH_TOKEN"]
    apart.begin("--rdzv-conf", "auth=none")
    assert apart.codes() == [0, 0], apart.transcript
    for number in range(2):
        assert "nodes need no token (auth=none): whoever reaches the port" in apart.said(number)
    apart.assert_same_end(alone)
