"""Ranks forked from the warm parent cannot be told from started ones, and its end costs the job nothing."""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.harness import JOBS, FtJob
from tests.support.leftovers import alive
from tests.support.waiting import wait_for

from ftlaunch.ranks import environment
from ftlaunch.ranks.fork_client import ForkOrder, Warm
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.processes import Leader, RankProcess

PROBE = JOBS / "warm_probe.py"
MARKER = "FT_TEST_WARM=1"
by_default = pytest.mark.skipif("FT_TEST_PLAIN" in os.environ, reason="all jobs are started without a warm parent")
either = pytest.mark.parametrize("how", ["--warm", pytest.param("--no-warm", marks=pytest.mark.slow)])


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parents(job: FtJob) -> list[int]:
    """The warm parent of a job: a list, for there may be none. Ranks have its command line too, and are leaders."""
    ranks = job.pids() if job.events("attempt_started") else []
    return [pid for pid in children(job.supervisor.pid) if pid not in ranks and "fork_server.py" in command(pid)]


def is_forked(job: FtJob) -> bool:
    return all("fork_server.py" in command(pid) for pid in job.pids())


# --- what a rank sees ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("script", "link")),
        "module",
        pytest.param("again", marks=pytest.mark.long),
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
    forked, started = seen
    assert forked.keys() == started.keys()
    for name, value in started.items():
        assert forked[name] == value, name
    assert forked["modules"] == []
    assert forked["page"]
    assert forked["death"] == signal.SIGKILL
    job.assert_clean()


@either
def test_no_two_ranks_draw_the_same(job: FtJob, how: str) -> None:
    out = job.home / "draws"
    job.start(how, "--preload", "numpy,numpy.random", script=PROBE, args=("draws", str(out)), ranks=2)
    assert job.wait() == 0, job.stderr
    draws = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(2)]
    assert all(one != other for one, other in zip(*draws, strict=True)), draws


@pytest.mark.long
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


@pytest.mark.long
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


class Nursery:
    """Does with a warm parent what the supervisor does, here in the test."""

    def __init__(self, home: Path, script: Path, **flags: str) -> None:
        self.home = home
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("FTLAUNCH")}
        self.spec = resolve(str(script), (), {"run_dir": str(home / "run"), "warm": "true", **flags}, self.env)
        env = environment.warm_env(self.spec, self.env, home)
        self.warm = Warm(HelperProcesses(), self.spec, env, home / "warm.log", lambda *_, **__: None)
        while self.warm.starting:
            assert self.warm.link is not None
            assert select.select([self.warm.link.fd], [], [], 60)[0]
            self.warm.hear()

    def orders(self, envs: list[dict[str, str]]) -> dict[int, ForkOrder]:
        return {n: ForkOrder({**self.env, **env}, self.home / f"forked_{n}.log") for n, env in enumerate(envs)}

    def end(self, ranks: Mapping[int, Leader]) -> list[int]:
        for rank in ranks.values():
            if rank.returncode is None:
                assert select.select([rank.pidfd], [], [], 60)[0]
                assert rank.reap()
        return [ranks[number].returncode or 0 for number in sorted(ranks)]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Callable[..., Nursery]]:
    made = []
    prctl = ctypes.CDLL(None).prctl
    prctl(36, 1, 0, 0, 0)

    def make(script: Path, **flags: str) -> Nursery:
        made.append(Nursery(tmp_path, script, **flags))
        return made[-1]

    yield make
    for one in made:
        one.warm.close()
    prctl(36, 0, 0, 0, 0)


@pytest.mark.slow
def test_every_exit_status_arrives(nursery: Callable[..., Nursery]) -> None:
    nest = nursery(JOBS / "warm_ends.py", preload="quick")
    deadly = [int(s) for s in signal.valid_signals() if s not in (17, 18, 19, 20, 21, 22, 23, 28)]
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python
    deadly = [number for number in deadly if number not in ignored and number != signal.SIGINT]
    ends = [{"END": f"now {code}"} for code in range(256)] + [{"END": f"signal {number}"} for number in deadly]
    ranks = nest.warm.fork(nest.orders(ends), MARKER)
    assert len(ranks) == len(ends)
    assert nest.end(ranks) == [*range(256), *(-number for number in deadly)]


ENDS = [
    "exit 0", "exit 1", "exit 2", "exit 3", "exit 75", "exit 255", "exit 256", "text", "none", "interrupt", "sigint",
    "thread", "thread fails", "hook", "hook exits", "syntax", "raise", "atexit fails", "segv", "abort", "closed",
    "now 1", "now 75", "now 255", "signal 9", "signal 15", "signal 34",
]  # fmt: skip


@pytest.mark.long
def test_the_end_is_the_same_and_so_are_its_words(nursery: Callable[..., Nursery], tmp_path: Path) -> None:
    nest = nursery(JOBS / "warm_ends.py", preload="quick")
    orders = nest.orders([{"END": end, "PYTHONFAULTHANDLER": "1"} for end in ENDS])
    forked = nest.end(nest.warm.fork(orders, MARKER))
    argv = environment.rank_argv(nest.spec)
    plain = {n: tmp_path / f"started_{n}.log" for n in orders}
    started = nest.end({n: RankProcess(n, argv, order.env, plain[n], MARKER) for n, order in orders.items()})
    assert forked == started
    for number, end in enumerate(ENDS):
        ours, theirs = (re.sub(r"0x[0-9a-f]+", "0x", log.read_text()) for log in (orders[number].log, plain[number]))
        if end in ("segv", "abort"):  # faulthandler shows what is below the script, and which modules are there
            ours, theirs = (text.partition("most recent call first")[0] for text in (ours, theirs))
        assert ours == theirs, end


@pytest.mark.parametrize(
    "text", [pytest.param("a b\n", marks=pytest.mark.slow), "x = 'ä'\n".encode("latin-1"),
             pytest.param(None, marks=pytest.mark.slow)]
)  # fmt: skip
def test_a_script_that_cannot_be_run(nursery: Callable[..., Nursery], tmp_path: Path, text: object) -> None:
    script = tmp_path / "script.py"
    script.touch()
    nest = nursery(script)
    if text is None:
        script.unlink()
    else:
        script.write_bytes(text if isinstance(text, bytes) else str(text).encode())
    orders = nest.orders([{}])
    forked = nest.end(nest.warm.fork(orders, MARKER))
    log = tmp_path / "started.log"
    started = nest.end({0: RankProcess(0, environment.rank_argv(nest.spec), nest.env, log, MARKER)})
    assert forked == started
    assert orders[0].log.read_text() == log.read_text()


# --- the warm parent ends ------------------------------------------------------------------------------------


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


@pytest.mark.long
def test_one_that_does_not_answer_is_done_without(job: FtJob) -> None:
    args = ("--out", str(job.out), "--step-time", "0.05", "--steps", "15")
    job.start("--warm", args=args, env={"FAULT": "sigkill 0 12"}, ranks=1)
    job.wait_step(2)
    (parent,) = parents(job)
    for pid in (*children(parent), parent):
        os.kill(pid, signal.SIGSTOP)
    job.wait_event("attempt_started", 2)
    assert not is_forked(job)
    assert job.wait() == 0, job.stderr
    assert not alive(parent)
    assert job.fired() == ["sigkill 0 0"]
    assert len(job.events("incident")) == 1, job.journal_text
    assert sorted(job.losses()) == list(range(15))
    job.assert_clean()


@either
def test_the_ranks_end_with_the_supervisor(job: FtJob, how: str) -> None:
    job.start(how, args=("--out", str(job.out), "--step-time", "0.05"))
    job.wait_step(2)
    pids = [*job.pids(), *parents(job)]
    assert is_forked(job) is (how == "--warm")
    job.supervisor.kill()
    wait_for(lambda: not any(map(alive, pids)), "the end of all ranks")


@either
def test_what_has_changed_is_read_again(job: FtJob, how: str) -> None:
    script, module = job.home / "changing.py", job.home / "beside.py"
    script.write_text("import beside, sys\nprint('old', beside.word)\nsys.exit(5)\n")
    module.write_text("word = 'one'\n")
    job.start(how, "--backoff-first", "1s", script=script, args=(), ranks=1)
    job.wait_event("rank_exited")
    module.write_text("word = 'another'\n")
    script.write_text("import beside\nprint('new', beside.word)\n")
    assert job.wait() == 0, job.stderr
    assert (job.log(0, 0), job.log(1, 0)) == ("old one\n", "new another\n")


# --- where there can be none ---------------------------------------------------------------------------------

UNFIT = {
    "fails": ("1 / 0\n", "ended with 1: ZeroDivisionError: division by zero"),
    "exits": ("import os\nos._exit(4)\n", "ended with 4 "),
    "cuda": ("import torch\ntorch.cuda.is_initialized = lambda: True\n", "initialises CUDA"),
    "forked": ("import torch\ntorch.cuda._is_in_bad_fork = lambda: True\n", "asks CUDA"),
}  # fmt: skip


@by_default
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in ("fails", "cuda") else pytest.mark.slow) for kind in UNFIT],
)
def test_a_module_that_cannot_be_shared_makes_plain_ranks(job: FtJob, kind: str) -> None:
    code, words = UNFIT[kind]
    (job.home / "unfit.py").write_text(code)
    script = job.home / "script.py"
    script.write_text("import os, sys\nprint('unfit' in sys.modules)\n")
    job.start("--preload", "unfit", script=script, args=())
    assert job.wait() == 0, job.stderr
    (line,) = [line for line in job.stderr.splitlines() if "plain processes" in line]
    assert words in line
    assert job.log(0, 0) == "False\n"
    job.assert_clean()


SPOILING = {
    "threads": ("import threading, time\n"
                "threading.Thread(target=time.sleep, args=(99,), name='pool-7', daemon=True).start()\n",
                "spoils starts a thread when it is imported (pool-7)"),
    "files": ("kept = open(__file__)\n", "spoils leaves files open when it is imported"),
}  # fmt: skip


@by_default
@pytest.mark.parametrize("kind", ["threads", pytest.param("files", marks=pytest.mark.slow)])
def test_a_module_that_is_in_the_way_is_left_out_alone(job: FtJob, kind: str) -> None:
    """What is preloaded beside it stays warm. Taken out: without `_begin_anew` in main() all ranks are plain."""
    code, words = SPOILING[kind]
    (job.home / "spoils.py").write_text(code)
    (job.home / "fine.py").write_text("import os\nPARENT = os.getpid()\n")
    script = job.home / "script.py"
    script.write_text("import fine, os, sys\nprint('spoils' in sys.modules, fine.PARENT != os.getpid())\n")
    job.start("--preload", "fine,spoils", script=script, args=())
    assert job.wait() == 0, job.stderr
    (line,) = [line for line in " ".join(job.stderr.split()).split("ftlaunch: ") if "not preloading" in line]
    assert line.startswith("not preloading spoils: ")
    assert words in line
    assert job.log(0, 0) == "False True\n"
    assert [event["state"] for event in job.events("warm_parent")][:2] == ["without", "ready"]
    job.assert_clean()


@pytest.mark.parametrize("asked", [True, False])
def test_without_torch_it_is_said_only_to_who_asked(job: FtJob, asked: bool) -> None:
    script = job.home / "script.py"
    script.write_text("import sys\nprint(sys.argv[0][-9:])\n")
    bare = job.home / "bare"
    os.symlink(sys._base_executable, bare)  # type: ignore[attr-defined]
    job.start(
        *(["--warm"] if asked else ["--preload", "json"]),
        script=script,
        args=(),
        env={"PYTHON_EXEC": str(bare)},
        ranks=1,
    )
    assert job.wait() == 0, job.stderr
    assert ("torch is not installed" in job.stderr) is asked
    assert job.log(0, 0) == "script.py\n"


LATE = """
import importlib, threading, time
importing = importlib.import_module
def spoilt(name, package=None):
    if name == "torch._dynamo":
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
    return importing(name, package)
importlib.import_module = spoilt
"""


@pytest.mark.long
@by_default
def test_what_is_imported_later_and_cannot_be_shared_is_left_out(job: FtJob) -> None:
    """The same process begins anew, without it."""
    (job.home / "late.py").write_text(LATE)
    script = job.home / "script.py"
    script.write_text("import os, signal\nos.environ['FTLAUNCH_ATTEMPT'] == '0' and signal.pause()\n")
    job.start("--preload", "late", script=script, args=(), ranks=1)
    (rank,) = job.wait_event("attempt_started")["pids"]
    parent = job.wait_warm("ready")["pid"]
    wait_for(lambda: len(job.events("warm_parent")) == 2, "another beginning")
    assert [(event["state"], event["pid"]) for event in job.events("warm_parent")] == [("ready", parent)] * 2
    os.kill(rank, signal.SIGKILL)
    job.wait_event("attempt_started", 2)
    assert is_forked(job)
    assert job.wait() == 0, job.stderr
    log = (job.run_dir / "logs" / "warm.log").read_text()
    assert log.startswith("doing without torch._dynamo: torch._dynamo starts a thread"), log
    job.assert_clean()


@by_default
def test_told_to_stop_while_it_imports(job: FtJob) -> None:
    (job.home / "slow.py").write_text("import time\ntime.sleep(100)\n")
    job.start("--preload", "slow")
    wait_for(lambda: job.supervisor.poll() is None and children(job.supervisor.pid) and job.status(), "the supervisor")
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 143, job.stderr
    assert not job.events("attempt_started")
    job.assert_clean()
