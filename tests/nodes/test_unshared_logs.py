"""`ftctl logs` of a job whose nodes have run dirs of their own: what ranks elsewhere have printed, and print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import PATIENT, NodesJob
from tests.support.ctl import ftctl
from tests.support.waiting import wait_for

from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.channel.connection import connect
from ftlaunch.nodes.cluster import messages
from ftlaunch.system.control_socket import SOCKET, ask

TOKEN = "a token that is long enough"
SCRIPT = """
import os, pathlib, sys, time
home = pathlib.Path(sys.argv[1])
rank, attempt = os.environ["RANK"], os.environ["FTLAUNCH_ATTEMPT"]
print(f"rank {rank} in attempt {attempt}", flush=True)
if (home / "much").exists():
    print(("x" * 99 + "\\n") * 60_000, end="", flush=True)
shown = 0
while not (home / "end").exists():
    if rank == "3" and attempt == "0" and (home / "fail").exists():
        sys.exit("rank 3 fails")
    lines = (home / "lines").read_text().splitlines() if (home / "lines").exists() else []
    for line in lines[shown:]:
        print(f"rank {rank}: {line}", flush=True)
    shown = len(lines)
    time.sleep(0.01)
sys.stdout.write(f"rank {rank} ends")
"""


class PrintingJob(NodesJob):
    """A job of two nodes, each with a run dir of its own, whose ranks print what the test tells them to."""

    def __init__(self, home: Path) -> None:
        """Prepare the job without starting agents."""
        super().__init__(home)
        self.env["FTLAUNCH_TOKEN"] = TOKEN
        self.mine = home / "mine"
        """the run dir of the second node"""
        self.script = home / "prints.py"
        self.script.write_text(SCRIPT)
        self.followers: list[subprocess.Popen[str]] = []

    def begin(self, *more: str) -> list[object]:  # type: ignore[override]
        """Start both agents, and wait until the ranks of the second node print."""
        first = self.agent("--node-rank", "0", *more)
        self.wait_event("job_started")
        agents = [first, self.agent("--node-rank", "1", "--run-dir", str(self.mine), *more)]
        wait_for(lambda: all(self.log(rank).exists() for rank in (2, 3)), "the logs of the second node")
        wait_for(lambda: "attempt_started" in self.journal_of_mine(), "the copy of the journal")
        return agents

    def start(self, *options: Any, **settings: Any) -> Any:
        """Start an agent, whose script gets the folder in which the test leaves what is to be printed."""
        return super().start(*options, **{**settings, "args": (str(self.home),)})

    def log(self, rank: int, attempt: int = 0) -> Path:
        """Return the log of a rank of the second node."""
        return self.mine / f"logs/attempt_{attempt}/rank_{rank}.log"

    def journal_of_mine(self) -> str:
        """Return the second node's copy of the journal."""
        path = self.mine / "events.jsonl"
        return path.read_text() if path.exists() else ""

    def print(self, *lines: str) -> None:
        """Have every rank print lines."""
        with (self.home / "lines").open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def end(self) -> None:
        """Have every rank end."""
        (self.home / "end").touch()

    def logs(self, *words: str, run: Path | None = None) -> tuple[int, str, str]:
        """Run `ftctl logs` on the head's node, or on that of a run dir."""
        return ftctl("logs", run or self.run_dir, *words, cwd=self.home)

    def follow(self, *words: str, run: Path | None = None) -> subprocess.Popen[str]:
        """Start `ftctl logs --follow`, which writes into the files `followed` and `said`."""
        command = [sys.executable, "-m", "ftlaunch.cli.ctl", "logs", str(run or self.run_dir), "-f", *words]
        with (self.home / "followed").open("w") as out, (self.home / "told").open("w") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, text=True, cwd=self.home)
        self.followers.append(process)
        return process

    @property
    def followed(self) -> str:
        """What the follower has printed."""
        return (self.home / "followed").read_text()

    @property
    def told(self) -> str:
        """What the follower has written to stderr."""
        return (self.home / "told").read_text()

    def dispose(self) -> None:
        """End the followers, then the job."""
        for follower in self.followers:
            follower.kill()
            follower.wait()
        super().dispose()


@pytest.fixture
def printing(tmp_path: Path) -> Iterator[PrintingJob]:
    job = PrintingJob(tmp_path)
    yield job
    job.dispose()


@pytest.mark.long
def test_logs_of_every_rank_are_shown_on_every_node(printing: PrintingJob) -> None:
    printing.begin(*PATIENT)
    printing.print("hello")
    for run in (printing.run_dir, printing.mine):
        wait_for(lambda run=run: printing.logs(run=run)[1].count("hello") == 4, "all lines")  # type: ignore[misc]
        code, out, told = printing.logs(run=run)
        assert code == 0, told
        wanted = [f"[{rank}] rank {rank}{words}" for rank in range(4) for words in (" in attempt 0", ": hello")]
        assert out.splitlines() == wanted
        assert "ftctl: rank 3 of attempt 0: from node 1 (" in told
        assert "ftctl: rank 0 of attempt 0: from the machine of the head (" in told
        assert printing.logs("--rank", "3", run=run)[1] == "rank 3 in attempt 0\nrank 3: hello\n"
    assert not (printing.run_dir / "logs/attempt_0/rank_3.log").exists(), "logs stay where the rank ran"
    printing.end()
    assert printing.codes() == [0, 0], printing.transcript
    code, out, told = printing.logs()
    assert (code, out.count("ends")) == (0, 2)
    assert "the nodes of this job share no run dir, and it does not run now" in told


@pytest.mark.long
@pytest.mark.parametrize("there", [False, True], ids=["head", "other"])
def test_lines_are_followed_to_the_last_one(printing: PrintingJob, there: bool) -> None:
    """Taken out (`have_been_read`): the nodes have ended before the last lines were fetched."""
    printing.begin(*PATIENT)
    ranks = ("--rank", "0", "--rank", "1") if there else ("--rank", "2", "--rank", "3")
    follower = printing.follow(*ranks, run=printing.mine if there else None)
    for number in range(3):
        printing.print(f"line {number}")
        wait_for(lambda number=number: printing.followed.count(f"line {number}\n") == 2, "the lines")  # type: ignore[misc]
    printing.end()
    assert follower.wait(30.0) == 0, printing.told
    assert printing.followed.count("ends") == 2, (printing.followed, printing.told)
    assert printing.codes() == [0, 0], printing.transcript


@pytest.mark.slow
def test_a_new_attempt_and_the_end_of_a_failed_one_are_followed(printing: PrintingJob) -> None:
    printing.begin(*PATIENT)
    follower = printing.follow("--rank", "3")
    wait_for(lambda: "attempt 0" in printing.followed, "the first lines")
    (printing.home / "fail").touch()
    wait_for(lambda: "rank 3 in attempt 1\n" in printing.followed, "the second attempt")
    assert printing.followed.splitlines() == ["rank 3 in attempt 0", "rank 3 fails", "rank 3 in attempt 1"]
    wait_for((printing.run_dir / "logs/attempt_0/rank_3.log").exists, "what the head has kept of it")
    assert printing.logs("--attempt", "0", "--rank", "3")[:2] == (0, "rank 3 in attempt 0\nrank 3 fails\n")
    assert printing.logs("--since", "1h", "--rank", "3")[1].splitlines() == printing.followed.splitlines()
    printing.end()
    assert follower.wait(30.0) == 0, printing.told
    assert printing.codes() == [0, 0], printing.transcript


@pytest.mark.slow
def test_a_node_that_is_lost_is_named_and_what_the_head_has_is_shown(printing: PrintingJob) -> None:
    printing.range = "1:2"
    printing.begin("--node-timeout", "2s", "--max-restarts", "5", "--rdzv-conf", "last_call_timeout=15")
    (printing.home / "fail").touch()
    printing.wait_event("incident")
    printing.wait_event("attempt_started", 2)
    follower = printing.follow()
    wait_for(lambda: printing.followed.count("in attempt 1") == 4, "the lines of all ranks")
    os.kill(printing.supervisors[1].pid, signal.SIGKILL)
    printing.wait_event("node_left")
    wait_for(lambda: "node 1 (" in printing.told and "is lost or has left" in printing.told, "the sentence")
    printing.wait_event("attempt_started", 3)
    wait_for(lambda: "rank 0 in attempt 2\n" in printing.followed, "the ranks that go on")
    code, out, told = printing.logs("--attempt", "0", "--rank", "3")
    assert (code, out) == (1, "rank 3 in attempt 0\nrank 3 fails\n"), told
    assert "rank 3 of attempt 0 ran on node 1 (" in told
    assert "which the head does not reach now; the ends of the logs of rank 3 are shown" in told
    printing.agent("--node-rank", "1", "--run-dir", str(printing.mine))
    wait_for(lambda: "from a node standing by (" in printing.logs("--attempt", "0", "--rank", "3")[2], "the node")
    assert printing.logs("--attempt", "0", "--rank", "3")[:2] == (0, "rank 3 in attempt 0\nrank 3 fails\n")
    printing.end()
    assert follower.wait(30.0) == 0, printing.told
    assert printing.codes()[0] == 0, printing.transcript


@pytest.mark.slow
def test_a_node_that_does_not_answer_is_named(printing: PrintingJob) -> None:
    printing.begin(*PATIENT)
    agent = printing.supervisors[1]
    agent.send_signal(signal.SIGSTOP)
    try:
        code, _, told = printing.logs("--rank", "0", "--rank", "3")
    finally:
        agent.send_signal(signal.SIGCONT)
    assert code == 1
    assert "cannot read the logs on node 1 (" in told
    assert "has not answered for 2 s" in told
    assert printing.logs("--rank", "3")[:2] == (0, "rank 3 in attempt 0\n")
    printing.end()
    assert printing.codes() == [0, 0], printing.transcript


@pytest.mark.long
def test_logs_of_last_week_on_a_node_are_not_this_job_s(printing: PrintingJob) -> None:
    """Taken out (`attempts` returning None): lines of another job, in attempts that this job has not had."""
    for attempt in (0, 7):
        printing.log(3, attempt).parent.mkdir(parents=True)
        printing.log(3, attempt).write_text("of last week\n")
        os.utime(printing.log(3, attempt), (1e9, 1e9))
    printing.begin(*PATIENT)
    wait_for(lambda: "attempt 0" in printing.log(3).read_text(), "a line of the rank")
    assert "of last week" in printing.log(3).read_text()
    assert printing.logs("--rank", "3")[:2] == (0, "rank 3 in attempt 0\n")
    printing.end()
    assert printing.codes() == [0, 0], printing.transcript


@pytest.mark.slow
def test_readers_delay_no_beat_and_the_head_keeps_nothing_for_them(printing: PrintingJob) -> None:
    """Many readers at once, and one that does not read: no node is lost, and the head's memory stays."""
    (printing.home / "much").touch()
    printing.begin("--node-timeout", "3s")
    wait_for(lambda: printing.log(3).stat().st_size > 6_000_000, "much output")
    head = printing.head
    before = _rss(head)
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "logs", str(printing.mine), "--rank", "0"]
    slow = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=printing.home)
    printing.followers.append(slow)  # type: ignore[arg-type]
    readers = [threading.Thread(target=_read_much, args=(printing,)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert slow.poll() is None, "it is still waiting for its reader"
    assert _rss(head) < before + (16 << 20)
    assert not printing.events("node_left"), printing.transcript
    printing.end()
    assert printing.codes() == [0, 0], printing.transcript


def _read_much(job: PrintingJob) -> None:
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "logs", str(job.run_dir), "--rank", "3"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=job.home)
    assert found.stdout.count("x" * 99) == 60_000


def _rss(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_a_stranger_without_the_token_gets_nothing(printing: PrintingJob) -> None:
    printing.begin(*PATIENT)
    loop = EventLoop[Any](time.monotonic)
    stranger = connect(
        loop=loop,
        clock=time.monotonic,
        address="127.0.0.1",
        port=printing.port,
        token=b"another token, of the same length",
        deadline=time.monotonic() + 10.0,
        version=messages.VERSION,
    )
    received: list[dict[str, Any]] = []
    ended: list[str] = []
    stranger.on_message = received.append
    stranger.on_end = ended.append
    stranger.send({"do": "ask", "number": 1, "request": {"do": "logs", "what": "nodes"}})
    deadline = time.monotonic() + 10.0

    class UntilTurnedAway:
        code = None

        @property
        def over(self) -> bool:
            return bool(ended) or time.monotonic() > deadline

        def next_poll_at(self) -> float:
            return time.monotonic() + 0.05

        def poll(self) -> None: ...

        def handle(self, event: object) -> None: ...

        def fail(self, error: Exception) -> None:
            raise error

    loop.run(UntilTurnedAway())
    loop.close()
    assert ended, "it was not turned away"
    assert not received
    printing.end()
    assert printing.codes() == [0, 0], printing.transcript


@pytest.mark.long
def test_nonsense_is_refused_in_a_sentence(printing: PrintingJob) -> None:
    """Taken out (`_whole`): a request reads files outside of the log folder."""
    printing.begin(*PATIENT)
    socket = printing.memory / SOCKET
    (row,) = ask(socket, {"do": "logs", "what": "nodes"})["nodes"]
    strange: list[dict[str, Any]] = [
        {"what": "read", "attempt": 0, "rank": "../../secret", "offset": 0},
        {"what": "read", "attempt": -1, "rank": 0, "offset": 0},
        {"what": "read", "attempt": 0, "rank": 0, "offset": 1 << 70},
        {"what": "list", "attempt": "../.."},
        {"what": "secret", "attempt": 0},
        {"what": "since", "attempt": 0, "when": "yesterday"},
        {},
    ]
    for key in (0, row["key"]):
        for request in strange:
            answer = ask(socket, {"do": "logs", "node": key, **request})
            assert answer["ok"] is False
            assert "a request for logs that cannot be understood" in answer["error"], answer
    for key in (99, "1", None):
        assert "that node is lost, or has left the job" in ask(socket, {"do": "logs", "node": key})["error"]
    assert not printing.events("node_left"), printing.transcript
    printing.end()
    assert printing.codes() == [0, 0], printing.transcript
