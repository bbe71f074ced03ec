"""What an agent does of its own: it ends its ranks where it has lost the head, in time for others to be started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.clock import Clock

from ftlaunch.agent.agent import Agent
from ftlaunch.cluster.cluster import FENCE
from ftlaunch.cluster.fences import Fences
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_SAVED, EXIT_STOPPED, EXIT_USAGE

TIMEOUT, WAIT = 2.0, 60.0
SPAWN = {"do": "spawn", "attempt": 0, "place": {}, "resume": []}


class FakeLink:
    """The connection to the head, which a test makes and breaks."""

    endpoint, why = "10.0.0.1:29400", "it was closed by the other side"
    target = "127.0.0.1", 1  # nobody listens there: the head is known to be dead

    def __init__(self, clock: Clock, heard: Callable[[dict[str, Any]], None], met: Callable[[], None]) -> None:
        self.clock, self.heard, self._met = clock, heard, met
        self.alone_since: float | None = clock()
        self.was_met, self.answers = False, True
        self.sent: list[dict[str, Any]] = []

    def send(self, do: str, **fields: Any) -> None:
        """Keep what is sent to the head."""
        if self.alone_since is None:
            self.sent.append({"do": do, **fields})

    def meet(self) -> None:
        """There is a head."""
        self.alone_since, self.was_met = None, True
        self._met()

    def beat(self) -> None:
        """The agent sends a beat; a head that hears it answers."""
        if self.alone_since is None and self.answers:
            self.heard({"do": "heard", "now": self.clock()})

    def give_up(self, why: str) -> None:
        """The agent takes the head for lost."""
        if self.alone_since is None:
            self.lose()

    def lose(self) -> None:
        """There is none any more."""
        self.alone_since = self.clock()

    def names(self) -> list[str]:
        """Names of what was sent."""
        return [message["do"] for message in self.sent]


class FakeRanks:
    """Ranks that end when they are killed, unless the test holds them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.beat: Callable[[], None] = lambda: None
        self.cleared, self.obey = True, True

    def _note(self, name: str) -> None:
        self.calls.append(name)

    def spawn(self, message: Mapping[str, Any]) -> None:
        """Ranks run."""
        self._note("spawn")
        self.cleared = False

    def kill(self) -> None:
        """They end."""
        self._note("kill")
        self.cleared = self.cleared or self.obey

    def leave(self) -> None:
        """They are asked to."""
        self._note("leave")

    def perform(self, verb: str, values: list[Any]) -> None:
        """See NodeRanks."""
        self._note(verb)

    def look(self) -> None:
        """Nothing to see but that they live."""
        self.beat()

    def tell_all_words_again(self) -> None:
        """See NodeRanks."""
        self._note("again")

    def held(self) -> tuple[list[int], dict[int, list[int]]]:
        """Its memory."""
        return [2, 2], {2: [7, 8], 3: [7, 8]}

    def free_port(self) -> int:
        """See NodeRanks."""
        return 29500

    def slot_dirs(self, slots: Mapping[str, int]) -> dict[str, str]:
        """See NodeRanks."""
        return {}


class FakeHelpers:
    """A fork server that is ready when the test says so."""

    def __init__(self) -> None:
        self.ready = True

    def may_begin(self, now: float) -> bool:
        """Whether ranks can be forked."""
        return self.ready

    def look(self) -> None:
        """Nothing to see."""


class Node:
    """An agent, and what it works with."""

    def __init__(self, home: Path) -> None:
        (home / "train.py").touch()
        flags = {
            "nproc_per_node": "2", "nnodes": "2", "rdzv_endpoint": "10.0.0.1:29400", "run_dir": str(home / "run"),
            "job_id": "fake", "node_timeout": f"{TIMEOUT}s", "node_wait": f"{WAIT}s",
        }  # fmt: skip
        spec = resolve(str(home / "train.py"), [], flags, {})
        self.clock, self.said = Clock(), list[str]()
        self.ranks: Any = FakeRanks()
        self.helpers: Any = FakeHelpers()
        hello = {"job": "the job", "host": "here", "rank": -1, "probe": 5}
        self.agent = Agent(spec, self.clock, self._link, self.ranks, self.helpers, hello, self.said.append)
        self.link: Any = self.agent.link

    def _link(self, heard: Callable[[dict[str, Any]], None], met: Callable[[], None]) -> Any:
        link = FakeLink(self.clock, heard, met)
        self.ranks.beat = link.beat
        return link

    def live(self, seconds: float) -> None:
        """Let the time pass as the event loop does."""
        until = self.clock.now + seconds
        while self.clock.now < until and not self.agent.over:
            self.clock.now = min(max(self.agent.next_look(), self.clock.now + 0.001), until)
            self.agent.look()

    def train(self) -> None:
        """Join, and have ranks."""
        self.link.meet()
        self.live(1.0)
        self.link.heard(SPAWN)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_it_says_who_it_is_and_is_ready_once_ranks_can_be_forked(node: Node) -> None:
    node.helpers.ready = False
    node.link.meet()
    node.live(1.0)
    (hello,) = node.link.sent
    assert (hello["held"], hello["slots"][3], hello["port"], hello["probe"]) == ([2, 2], [7, 8], 29500, 5)
    node.helpers.ready = True
    node.live(1.0)
    assert node.link.names() == ["hello", "ready"], "once"


def test_without_a_head_it_ends_its_ranks_before_others_may_be_started(node: Node) -> None:
    """Taken out: with `FENCE` of a day its ranks go on beside those that follow them."""
    node.train()
    node.link.lose()
    node.live(TIMEOUT + FENCE - 0.2)
    assert not node.ranks.cleared, "a head may come back until then"
    assert not node.agent.over
    node.live(0.5)
    assert node.ranks.cleared
    assert node.agent.code == EXIT_SAVED
    assert node.agent.keep
    assert "the head at 10.0.0.1:29400 is gone (it was closed by the other side)" in node.said[0]


def test_an_agent_that_is_not_heard_ends_its_ranks_though_it_is_connected(node: Node) -> None:
    """A link that is cut ends the connection late. Taken out: its ranks live for longer."""
    node.train()
    node.link.answers = False
    node.live(TIMEOUT + FENCE - 0.2)
    assert not node.ranks.cleared
    node.live(0.4)
    assert node.ranks.cleared
    assert node.link.alone_since is not None, "it must say hello to the head anew"


def test_a_machine_that_was_cut_off_comes_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody says that the head is dead, so it may be the link: it is waited for."""
    monkeypatch.setattr(Fences, "all_down", lambda fences, now: False)
    node.train()
    node.link.answers = False
    node.live(TIMEOUT + FENCE + 10.0)
    assert not node.agent.over
    node.link.answers = True
    node.link.meet()
    node.live(TIMEOUT + FENCE + 1.0)
    assert not node.agent.over
    assert node.link.names() == ["hello", "ready", "hello", "ready"]


def test_it_is_over_once_its_ranks_are_gone(node: Node) -> None:
    node.train()
    node.ranks.obey = False
    node.link.lose()
    node.live(TIMEOUT + FENCE + 20.0)
    assert "kill" in node.ranks.calls
    assert not node.agent.over
    node.ranks.cleared = True
    node.live(0.3)
    assert node.agent.code == EXIT_SAVED


def test_a_head_that_comes_back_finds_no_ranks_of_an_attempt_that_it_does_not_know(node: Node) -> None:
    node.train()
    node.link.lose()
    node.live(TIMEOUT)
    assert not node.ranks.cleared
    node.link.meet()
    assert node.ranks.cleared
    node.live(TIMEOUT + FENCE + 5.0)
    assert node.link.names() == ["hello", "ready", "hello", "ready"]
    assert not node.agent.over


def test_where_nobody_has_ever_answered_it_gives_up_after_the_wait(node: Node) -> None:
    node.live(WAIT - 0.2)
    assert not node.agent.over
    node.live(0.5)
    assert node.agent.code == EXIT_GIVEN_UP
    assert node.said == ["cannot join: nobody answers at 10.0.0.1:29400 for 60 s (it was closed by the other side)"]


def test_a_refusal_is_the_end(node: Node) -> None:
    node.link.meet()
    node.link.heard({"do": "refused", "why": "another job"})
    assert node.agent.code == EXIT_USAGE
    assert node.said == ["cannot join: another job"]


@pytest.mark.parametrize("keep", [0, 1])
def test_the_heads_last_word_is_its_own(node: Node, keep: int) -> None:
    node.train()
    node.link.heard({"do": "done", "code": 75, "keep": keep})
    assert (node.agent.code, node.agent.keep) == (75, bool(keep))


def test_it_does_what_the_head_says(node: Node) -> None:
    node.train()
    node.link.heard({"do": "pages", "verb": "hold", "values": [7]})
    node.link.heard({"do": "leave"})
    node.link.heard({"do": "kill"})
    assert node.ranks.calls[-3:] == ["hold", "leave", "kill"]


# --- signals ------------------------------------------------------------------------------------------------------


def test_a_signal_is_the_heads_business(node: Node) -> None:
    node.train()
    node.agent.on_signals(bytes([signal.SIGTERM]))
    assert node.link.sent[-1] == {"do": "stop", "why": "SIGTERM to the agent of here"}
    node.agent.on_signals(bytes([signal.SIGINT]))
    assert node.link.names()[-1] == "stop"
    node.agent.on_signals(bytes([signal.SIGINT]))
    assert node.link.names()[-2:] == ["hurry", "stop"], "the second Ctrl+C"
    assert not node.agent.over


def test_a_signal_without_a_head_ends_this_node(node: Node) -> None:
    node.train()
    node.link.lose()
    node.agent.on_signals(bytes([signal.SIGTERM]))
    node.live(0.3)
    assert node.ranks.cleared
    assert node.agent.code == EXIT_SAVED


def test_a_signal_before_it_has_joined_ends_it(node: Node) -> None:
    node.agent.on_signals(bytes([signal.SIGINT]))
    assert node.agent.code == EXIT_STOPPED
    assert node.said == ["SIGINT to the agent of here: it had not joined the job yet"]
