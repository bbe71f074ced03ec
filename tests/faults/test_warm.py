"""Ranks forked from the warm parent cannot be told from started ones, and its end costs the job nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.support.forked import PROBE, by_default, is_forked, parents
from tests.support.harness import JOBS, FtJob
from tests.support.leftovers import alive
from tests.support.waiting import wait_for

from ftlaunch.system.processes import children

either = pytest.mark.parametrize("how", ["--warm", pytest.param("--no-warm", marks=pytest.mark.slow)])


# --- what a rank sees ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("script", "link")),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("module", "again")),
    ],
)
def test_a_rank_sees_what_a_started_one_sees(job: FtJob, kind: str) -> None:
    """`again`: in the second attempt, when the warm parent has imported more."""
    link = job.home / "sub" / "link.py"
    link.parent.mkdir()
    link.symlink_to(PROBE)
    out = job.home / "seen"
    script = {"link": "./sub/../sub/link.py", "module": "warm_probe"}.get(kind, str(PROBE))
    options = ["--max-restarts", "1" if kind == "again" else "0", *(["-m"] if kind == "module" else [])]
    seen = []
    old = os.umask(0o027)
    try:
        for warm in ("--warm", "--no-warm"):
            env = {"PYTHONPATH": str(JOBS), "OMP_NUM_THREADS": "2", "PYTHONWARNINGS": "error::UserWarning:nowhere"}
            job.start(warm, *options, script=script, args=("look", str(out)), env=env | {"AGAIN": kind}, ranks=1)
            if kind == "again":
                if warm == "--warm":
                    job.wait_warm("complete")
                (rank,) = job.wait_event("attempt_started", len(seen) * 2 + 1)["pids"]
                os.kill(rank, signal.SIGKILL)
            assert job.wait() == 0, job.stderr
            seen.append(json.loads(Path(f"{out}.0").read_text()))
    finally:
        os.umask(old)
    assert (job.run_dir / "logs" / "warm.log").read_text() == ""
    for one in seen:  # what no two runs have in common
        for environ in (one["environ"], one["c_environ"]):
            assert environ.pop("MASTER_PORT")
            assert environ.pop("FTLAUNCH_SUPERVISOR")
        # waits for modules that are seeded once they are imported: a warm process may have imported all of them
        one["meta_path"] = [finder for finder in one["meta_path"] if finder != "ImportHook"]
    forked, started = seen
    assert forked.keys() == started.keys()
    for name, value in started.items():
        assert forked[name] == value, name
    assert forked["modules"] == []
    assert forked["page"]
    assert forked["death"] == signal.SIGKILL
    job.assert_clean()


@pytest.mark.long
@either
def test_no_two_ranks_draw_the_same(job: FtJob, how: str) -> None:
    out = job.home / "draws"
    job.start(how, "--preload", "numpy,numpy.random", script=PROBE, args=("draws", str(out)), ranks=2)
    assert job.wait() == 0, job.stderr
    draws = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(2)]
    assert all(one != other for one, other in zip(*draws, strict=True)), draws


@pytest.mark.slow
@either
@pytest.mark.parametrize("methods", ["fork", pytest.param("fork spawn forkserver", marks=pytest.mark.slow)])
def test_children_of_every_kind(job: FtJob, methods: str, how: str) -> None:
    """DataLoader workers, pools, processes, torch's own: all find the script's classes and functions."""
    out = job.home / "children"
    job.start(how, script=PROBE, args=("children", str(out), *methods.split()), ranks=1)
    assert job.wait() == 0, job.stderr
    answers = json.loads(Path(f"{out}.0").read_text())
    for method in methods.split():
        assert answers[method] == [25, None, 0]
        assert answers[f"loader {method}"] == [[[0, 1, 2, 3], [4, 5, 6, 7]], False]
    if "spawn" in methods:
        assert (answers["pool"], answers["torch"]) == ([1, 4, 9], "0")
    assert (answers["pickle"], answers["compile"]) == ([7, "__main__"], 2.0)
    job.assert_clean()


@pytest.mark.slow
def test_what_the_script_sets_before_it_imports_torch(job: FtJob) -> None:
    """Numbers of threads are heeded; of what torch has read before, it is told."""
    script = job.home / "script.py"
    script.write_text(
        "import os\nos.environ.update(OMP_NUM_THREADS='1', TORCH_LOGS='dynamo', MINE='1')\n"
        "import torch\nprint(torch.get_num_threads())\n"
    )
    job.start("--warm", script=script, args=(), ranks=1)
    assert job.wait() == 0, job.stderr
    told, threads = job.log(0, 0).splitlines()
    assert told.startswith("ftlaunch: TORCH_LOGS, set by the script before it imports torch, may come too late")
    assert threads == "1"
    job.start("--no-warm", script=script, args=(), ranks=1)
    assert job.wait() == 0, job.stderr
    assert job.log(0, 0).splitlines()[-1] == "1"


# --- how a rank ends -----------------------------------------------------------------------------------------


# --- the warm parent ends ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["parent", pytest.param("helper", marks=pytest.mark.long)])
def test_its_end_is_not_noticed_by_the_job(job: FtJob, calm: FtJob, victim: str) -> None:
    """Without another in its place the second attempt is not forked."""
    job.start("--warm", args=("--out", str(job.out), "--step-time", "0.05"))
    job.wait_step(2)
    assert is_forked(job)
    (first,), ranks = parents(job), job.pids()
    for rank in ranks:  # the job waits for the test
        os.kill(rank, signal.SIGSTOP)
    target = first if victim == "parent" else wait_for(lambda: children(first), "a helper")[0]
    os.kill(target, signal.SIGKILL)
    wait_for(lambda: not alive(target), "its end")
    if victim == "parent":
        job.wait_warm("ended")
        wait_for(lambda: job.wait_warm("complete")["pid"] != first, "another that has all, before it is needed")
    os.kill(ranks[1], signal.SIGKILL)
    job.wait_event("attempt_started", 2)
    assert is_forked(job)
    assert job.wait() == 0, job.stderr
    assert [incident["rank"] for incident in job.events("incident")] == [1], job.journal_text
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.slow
def test_one_that_does_not_answer_is_done_without(job: FtJob) -> None:
    args = ("--out", str(job.out), "--step-time", "0.05", "--steps", "15")
    job.start("--warm", args=args, env={"FAULT": "sigkill 0 12"}, ranks=1)
    job.wait_step(2)
    (parent,) = parents(job)
    os.kill(parent, signal.SIGSTOP)
    for pid in children(parent):  # one that ends meanwhile is not reaped any more
        os.kill(pid, signal.SIGSTOP)
    job.wait_event("attempt_started", 2)
    assert not is_forked(job)
    assert job.wait_warm("plain")["ranks"] == [0]
    assert job.wait() == 0, job.stderr
    assert not alive(parent)
    assert job.fired() == ["sigkill 0 0"]
    assert len(job.events("incident")) == 1, job.journal_text
    assert sorted(job.losses()) == list(range(15))
    job.assert_clean()


@pytest.mark.long
@either
def test_the_ranks_end_with_the_supervisor(job: FtJob, how: str) -> None:
    job.start(how, args=("--out", str(job.out), "--step-time", "0.05"))
    job.wait_step(2)
    pids = [*job.pids(), *parents(job)]
    assert is_forked(job) is (how == "--warm")
    job.supervisor.kill()
    wait_for(lambda: not any(map(alive, pids)), "the end of all ranks")


@pytest.mark.long
@either
def test_what_has_changed_is_read_again(job: FtJob, how: str) -> None:
    script, module = job.home / "changing.py", job.home / "beside.py"
    waits = "while not pathlib.Path('changed').exists(): time.sleep(0.01)"
    script.write_text(
        f"import beside, pathlib, sys, time\nprint('old', beside.word, flush=True)\n{waits}\nsys.exit(5)\n"
    )
    module.write_text("word = 'one'\n")
    job.start(how, script=script, args=(), ranks=1)
    job.wait_event("attempt_started")
    wait_for(lambda: job.log(0, 0), "what the first attempt prints")
    module.write_text("word = 'another'\n")
    script.write_text("import beside\nprint('new', beside.word)\n")
    (job.home / "changed").touch()
    assert job.wait() == 0, job.stderr
    assert (job.log(0, 0), job.log(1, 0)) == ("old one\n", "new another\n")


# --- where there can be none ---------------------------------------------------------------------------------


@pytest.mark.long
@by_default
def test_told_to_stop_while_it_imports(job: FtJob) -> None:
    (job.home / "slow.py").write_text("import time\ntime.sleep(100)\n")
    job.start("--preload", "slow")
    wait_for(lambda: job.supervisor.poll() is None and children(job.supervisor.pid) and job.status(), "the supervisor")
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 143, job.stderr
    assert not job.events("attempt_started")
    job.assert_clean()
