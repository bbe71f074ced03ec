"""Real voters over TCP: what they have taken outlives them, and nobody is answered without the token."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import DEADLINE, wait_for

from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.nodes.channel.votes.claims import VotedClaims
from ftlaunch.nodes.channel.votes.records import Answer, Record, Voter
from ftlaunch.nodes.channel.votes.voter_file import VoterFiles
from ftlaunch.nodes.channel.votes.voter_links import VoterLinks

TOKEN = b"the token of this job"
HEAD = Sign(1, "127.0.0.1", 29400, "machine a", 10, 20, 1)


class Running:
    """A voter's process."""

    def __init__(self, run_dir: Path, token: bytes = TOKEN) -> None:
        self.run_dir = run_dir
        self._token = token
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftlaunch.nodes.channel.votes.voter"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def begin(self, head: Sign = HEAD) -> dict[str, Any]:
        """Order the voter, as a head does, and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {
            "do": "begin", "run_dir": str(self.run_dir), "token": self._token.hex(), "address": "127.0.0.1",
            "term": head.term, "head": head.process,
        }  # fmt: skip
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        assert select.select([self.process.stdout], [], [], DEADLINE)[0], "no answer"
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def voter(self, head: Sign = HEAD) -> Voter:
        answer = self.begin(head)
        assert "error" not in answer, answer
        return Voter(answer["name"], "127.0.0.1", answer["port"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[[str], Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a voter in a run dir of a name."""
    running: list[Running] = []

    def begin(name: str) -> Running:
        (tmp_path / name).mkdir(exist_ok=True)
        running.append(Running(tmp_path / name))
        return running[-1]

    yield begin
    for one in running:
        if one.process.poll() is None:
            one.kill()
        for pipe in (one.process.stdin, one.process.stdout):
            assert pipe is not None
            pipe.close()


def ask(voter: Voter, offered: Record | None, home: Path, token: bytes = TOKEN) -> Answer | None:
    answers = VoterLinks(home, token).ask([voter], offered, bool)
    return answers.get(voter.name)


def record(voter: Voter, sign: Sign = HEAD) -> Record:
    return Record(sign, (voter,), (), (1, 1))


def test_what_a_voter_has_taken_outlives_it(start: Start, tmp_path: Path) -> None:
    first = start("a")
    voter = first.voter()
    taken = ask(voter, record(voter), tmp_path)
    assert taken is not None
    assert taken.taken
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    assert ask(voter, None, tmp_path) is None
    second = start("a")
    assert second.voter() == voter, "the same name and port, so that others find it"
    again = ask(voter, None, tmp_path)
    assert again is not None
    assert again.kept == record(voter)
    assert again.age_seconds == float("inf"), "it has heard no head since its start"


def test_a_voter_of_another_boot_votes_under_another_name(start: Start, tmp_path: Path) -> None:
    first = start("a")
    voter = first.voter()
    assert ask(voter, record(voter), tmp_path) is not None
    first.kill()
    path = first.run_dir / "head" / "votes.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another boot"}))
    again = start("a").voter()
    assert again.name != voter.name
    assert ask(voter, None, tmp_path) is None
    assert VoterLinks(first.run_dir, TOKEN).read_own() == record(voter), "its machine still knows who may be the head"


def test_a_voter_that_another_job_orders_leaves_the_voters_that_it_was_with(start: Start, tmp_path: Path) -> None:
    running = start("a")
    voter = running.voter()
    assert ask(voter, record(voter), tmp_path) is not None
    other = Sign(1, "127.0.0.1", 29400, "machine b", 30, 40, 1)
    again = running.voter(other)
    assert again.name != voter.name
    assert ask(voter, None, tmp_path) is None
    answer = ask(again, None, tmp_path)
    assert answer is not None
    assert answer.kept is None


def test_nobody_is_answered_without_the_token(start: Start, tmp_path: Path) -> None:
    voter = start("a").voter()
    assert ask(voter, record(voter), tmp_path, token=b"another one") is None
    answer = ask(voter, None, tmp_path)
    assert answer is not None
    assert answer.kept is None


def test_a_run_dir_has_one_voter(start: Start) -> None:
    start("a").voter()
    assert "another voter is running" in start("a").begin()["error"]


def test_a_damaged_file_is_said_and_no_vote_is_given(start: Start, tmp_path: Path) -> None:
    running = start("a")
    (running.run_dir / "head").mkdir()
    path = running.run_dir / "head" / "votes.json"
    path.write_text("{")
    for _ in range(2):
        assert "the file is damaged" in running.begin()["error"]
    assert path.read_text() == "{", "what it was is not known, and not overwritten"
    with pytest.raises(OSError, match="the file is damaged"):
        VoterFiles(running.run_dir).read()


def test_a_voter_ends_with_its_agent(start: Start) -> None:
    running = start("a")
    running.voter()
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.process.stdin is not None
    running.process.stdin.close()
    assert running.process.wait(DEADLINE) == 0, "and not by the signal that its group gets"


def test_two_of_three_elect_a_head_while_the_third_is_stopped(start: Start, tmp_path: Path) -> None:
    """The stopped one takes what it was sent once it goes on, and refuses what is older."""
    running = [start(name) for name in "abc"]
    voters = tuple(one.voter() for one in running)
    whole = Record(HEAD, voters, (), (1, 1))
    for voter in voters:
        assert ask(voter, whole, tmp_path) is not None
    running[0].process.send_signal(signal.SIGSTOP)
    local = Claims(tmp_path)
    on_b = VotedClaims(local, VoterLinks(running[1].run_dir, TOKEN), 1.0)
    assert on_b.claim(Sign(2, "127.0.0.1", 29401, "machine b", 30, 40, 0))
    running[0].process.send_signal(signal.SIGCONT)
    answer = wait_for(lambda: ask(voters[0], whole, tmp_path), "the voter that was stopped")
    assert not answer.taken or answer.kept == whole
    on_b.show(Sign(2, "127.0.0.1", 29401, "machine b", 30, 40, 1))
    wait_for(lambda: (found := ask(voters[0], None, tmp_path)) and found.kept and found.kept.sign.term == 2, "term 2")
    with pytest.raises(PermissionError, match="another head has taken over"):
        VotedClaims(local, VoterLinks(running[0].run_dir, TOKEN), 1.0).check(1)
