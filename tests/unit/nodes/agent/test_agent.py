"""What an agent does of its own: it ends its ranks where it has lost the head, in time for others to be started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.clock import Clock
from tests.support.fakes.files import FilesInPlace

from ftlaunch.nodes.agent.agent import Agent
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.agent.node.own_files import OwnFiles
from ftlaunch.nodes.channel.claims import Sign
from ftlaunch.nodes.cluster.cluster import FENCE_SECONDS
from ftlaunch.nodes.cluster.log_pieces import BUSY
from ftlaunch.nodes.cluster.membership import shared_dirs
from ftlaunch.spec.resolve import resolve
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_SAVED, EXIT_USAGE

TIMEOUT, WAIT, STALE = 2.0, 60.0, 1.5
SPAWN = {"do": "spawn", "attempt": 0, "place": {"node": 1, "nodes": 2}, "resume": []}


class FakeLink:
    """The connection to the head, which a test makes and breaks."""

    endpoint, why = "10.0.0.1:29400", "it was closed by the other side"

    def __init__(
        self, clock: Clock, on_message: Callable[[dict[str, Any]], None], on_ready: Callable[[], None]
    ) -> None:
        self.clock, self.heard, self._on_ready = clock, on_message, on_ready
        self.alone_since: float | None = clock()
        self.was_met, self.refused, self.at_home, self.broken_off = False, False, False, 0
        self.tried_at = clock()
        self.sent: list[dict[str, Any]] = []
        self.went_to: tuple[str, int] | None = None

    def send(self, do: str, **fields: Any) -> None:
        """Keep what is sent to the head."""
        if self.alone_since is None:
            self.sent.append({"do": do, **fields})

    def meet(self) -> None:
        """There is a head."""
        self.alone_since, self.was_met = None, True
        self._on_ready()
        self.heard({"do": "welcome", "term": 1, "word": "word"})

    def lose(self) -> None:
        """There is none any more."""
        self.alone_since = self.clock()

    def go_to(self, address: str, port: int) -> None:
        """Note the address of another head, and lose the connection."""
        self.went_to = (address, port)
        self.lose()

    def renew(self, why: str, *, slowly: bool = False) -> None:
        """Lose the connection to the head, if there is one."""
        if self.alone_since is None:
            self.lose()

    def names(self) -> list[str]:
        """Names of what was sent."""
        return [message["do"] for message in self.sent]


class FakeRanks:
    """Ranks that end when they are killed, unless the test holds them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.cleared, self.obey, self.clearing = True, True, False
        self.beats, self.place = 0, 1

    def spawn(self, message: Mapping[str, Any]) -> None:
        """Ranks run."""
        self.calls.append("spawn")
        self.cleared = False

    def kill(self) -> None:
        """They end."""
        self.calls.append("kill")
        self.cleared = self.cleared or self.obey

    def leave(self) -> None:
        """SIGTERM."""
        self.calls.append("leave")

    def perform(self, verb: str, values: list[Any]) -> None:
        """Note the method of the pages that the head has called."""
        self.calls.append(verb)

    def poll(self) -> int:
        """The number of the beat."""
        self.beats += 1
        return self.beats

    def read_lineage(self) -> str:
        """Of which attempt its memory is."""
        return "run:0"

    def describe_running(self) -> dict[str, Any]:
        """Ranks that run on."""
        return {} if self.cleared else {"place": 1, "pids": {2: 102, 3: 103}, "ended": {}}

    def resend_all_words(self) -> None:
        """Note that the whole pages were to be sent again."""
        self.calls.append("resend")

    def describe_memory(self) -> dict[str, Any]:
        """What its node has."""
        held = {"held": [2, 2], "slots": {2: [7, 8], 3: [7, 8]}, "lineage": self.read_lineage()}
        return {**held, "running": self.describe_running(), "copier": {"port": 0, "lineage": "", "every": 0}}

    def forward_to_copier(self, message: Mapping[str, Any]) -> None:
        """Note the message about copies."""
        self.calls.append(message["do"])

    def find_free_port(self) -> int:
        """Return the usual port."""
        return 29500

    def slot_dirs(self, slots: Mapping[str, int]) -> dict[str, str]:
        """Return no directory."""
        return {}


class FakeHelpers:
    """A fork server that is ready when the test says so."""

    def __init__(self) -> None:
        self.ready = True

    def may_begin(self, now: float) -> bool:
        """Whether ranks can be forked."""
        return self.ready

    def poll(self, now: float) -> None:
        """Nothing to see."""


_OWN_HEADS = Sign(0, "10.0.0.1", 29400, "this machine", 1, 1, 0)


class Node:
    """An agent, and what it works with."""

    def __init__(self, home: Path) -> None:
        (home / "run/checkpoints").mkdir(parents=True)
        (home / "train.py").touch()
        flags = {
            "nproc_per_node": "2", "nnodes": "2", "rdzv_endpoint": "10.0.0.1:29400", "run_dir": str(home / "run"),
            "job_id": "fake", "node_timeout": f"{TIMEOUT}s", "node_wait": f"{WAIT}s",
        }  # fmt: skip
        spec = resolve(str(home / "train.py"), [], flags, {})
        shared_dirs.write((spec.run_dir, spec.checkpoint_dir), "word")
        self.clock, self.said = Clock(), list[str]()
        self.ranks: Any = FakeRanks()
        self.helpers: Any = FakeHelpers()
        self.orders: list[bytes] = []
        self.search = HeadSearch(self.orders.append, self.clock, "this machine", STALE)
        hello = {"job": "the job", "host": "here", "rank": -1, "probe": 5}
        own_files = OwnFiles(spec, FilesInPlace(), self._send, self.said.append)
        self.agent = Agent(
            spec=spec,
            clock=self.clock,
            make_link=self._link,
            ranks=self.ranks,
            helpers=self.helpers,
            search=self.search,
            own_files=own_files,
            serve_logs=lambda request, reply: reply(dict(BUSY)),
            hello=hello,
            say=self.said.append,
        )
        self.agent.beside_head = True
        self.link: Any = self.agent.link

    def _link(self, on_message: Callable[[dict[str, Any]], None], on_ready: Callable[[], None]) -> Any:
        return FakeLink(self.clock, on_message, on_ready)

    def _send(self, do: str, **fields: Any) -> None:
        self.link.send(do, **fields)

    def live(self, seconds: float, *, heard: bool = True) -> None:
        """Let the time pass as the event loop does. heard: the head says that it hears each beat."""
        until = self.clock.now + seconds
        while self.clock.now < until and not self.agent.over:
            self.clock.now = min(max(self.agent.next_poll_at(), self.clock.now + 0.001), until)
            self.agent.poll()
            if heard and self.link.alone_since is None:
                self.link.heard({"do": "heard", "number": self.ranks.beats})

    def answer_search(self, sign: Sign = _OWN_HEADS) -> None:
        """Answer all reads of the sign. By default storage shows no newer head than the own one."""
        while self.orders:
            self.orders.pop()
            self.search.on_answer({"sign": vars(sign)})

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
    node.train()
    node.live(1.0)
    node.link.lose()
    node.live(TIMEOUT + FENCE_SECONDS - 0.15)
    assert not node.ranks.cleared, "a head may come back until then"
    assert not node.agent.over
    node.live(0.3)
    assert node.ranks.cleared
    assert "no head hears this node (it was closed by the other side): ending its ranks" in node.said[0]
    node.live(WAIT)
    assert node.agent.code == EXIT_SAVED
    assert node.agent.keep
    assert "the head at 10.0.0.1:29400 is gone (it was closed by the other side)" in node.said[1]


def test_a_head_that_speaks_and_does_not_hear_is_none(node: Node) -> None:
    """The network is cut one way. Taken out: without the lease its ranks go on beside those that follow them."""
    node.train()
    node.live(1.0)
    node.live(TIMEOUT + FENCE_SECONDS + 0.3, heard=False)
    assert node.ranks.cleared
    assert node.link.alone_since is not None, "it tries another connection"


def test_while_nobody_listens_at_the_endpoint_another_head_may_begin(node: Node) -> None:
    node.train()
    node.link.lose()
    node.link.refused = node.link.at_home = True
    for _ in range(10):
        node.link.tried_at = node.clock()
        node.answer_search()
        node.live(1.0)
    node.link.meet()
    assert node.link.sent[-1]["running"] == {"place": 1, "pids": {2: 102, 3: 103}, "ended": {}}
    node.live(1.0)
    assert not node.ranks.cleared, "it is the head's to take them up, or to have them killed"


def test_it_is_over_once_its_ranks_are_gone(node: Node) -> None:
    node.train()
    node.ranks.obey = False
    node.link.lose()
    node.live(TIMEOUT + FENCE_SECONDS + WAIT + 20.0)
    assert "kill" in node.ranks.calls
    assert not node.agent.over
    node.ranks.cleared = True
    node.live(0.3)
    assert node.agent.code == EXIT_SAVED


def test_it_says_again_who_it_is_to_a_head_that_comes_back(node: Node) -> None:
    node.train()
    node.link.lose()
    node.live(TIMEOUT)
    node.link.meet()
    node.live(TIMEOUT + FENCE_SECONDS + 5.0)
    assert node.link.names() == ["hello", "ready", "hello", "ready"]
    assert not node.ranks.cleared
    assert not node.agent.over


def test_where_nobody_has_ever_answered_it_gives_up_after_the_wait(node: Node) -> None:
    node.live(WAIT - 0.2)
    assert not node.agent.over
    node.live(0.5)
    assert node.agent.code == EXIT_GIVEN_UP
    assert node.said == [
        "no head answers at 10.0.0.1:29400 yet (it was closed by the other side): this node tries again and again, for"
        " 60 s at most (--node-wait)",
        "cannot join: no head answers at 10.0.0.1:29400 for 60 s (it was closed by the other side)",
    ]


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


def test_a_failed_system_call_makes_it_meet_the_head_anew(node: Node) -> None:
    """Taken out: the agent ends with an exit code of 70, and its node is lost."""
    node.train()
    node.agent.fail(OSError(24, "Too many open files"))
    assert node.link.alone_since is not None
    (said,) = node.said
    assert "Too many open files" in said
    assert "meets the head anew" in said
    node.link.meet()
    assert node.link.names()[-1] == "hello"


def test_system_calls_that_fail_again_and_again_end_it(node: Node) -> None:
    node.train()
    error = OSError(5, "Input/output error")
    for _ in range(5):
        node.agent.fail(error)
        node.clock.now += 1.0
    with pytest.raises(OSError, match="Input/output error"):
        node.agent.fail(error)


def test_failed_system_calls_long_ago_do_not_count(node: Node) -> None:
    node.train()
    for _ in range(20):
        node.agent.fail(OSError(5, "Input/output error"))
        assert node.link.alone_since is not None, "it meets the head anew"
        node.link.meet()
        node.clock.now += 15.0
    assert node.agent.code is None


def test_an_error_that_is_no_system_calls_ends_it(node: Node) -> None:
    with pytest.raises(KeyError):
        node.agent.fail(KeyError("word"))
