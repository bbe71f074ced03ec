"""What the head asks of the mirrors, the nodes ask of their pages: in the end both halves are the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.memory.pages import Pages
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages, perform
from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.pages.words import Writer
from ftlaunch_contract.protocol import Resume

STEP = st.integers(-1, 1000)
COUNT = st.integers(1, 50)
VERBS = st.one_of(
    st.tuples(st.just("decide"), st.sampled_from(Resume), STEP, STEP),
    st.tuples(st.just("ask_stop"), STEP, st.just(10**9)),
    st.tuples(st.just("ask_leave")),
    st.tuples(st.sampled_from(["hold_at", "reading", "release", "went_back"]), STEP),
    st.tuples(st.just("announce_interval"), COUNT, COUNT),
)


class Job:
    """The mirrors of two nodes of two ranks, and the nodes' pages; what is sent arrives at once."""

    def __init__(self, home: Path) -> None:
        for name in ("head", "node0", "node1"):
            (home / name).mkdir()
        self.mirrors = ClusterPages(home / "head", 4)
        self.nodes = [Pages(home / f"node{node}", 2, 2 * node) for node in range(2)]
        self.sent: list[tuple[str, list[Any]]] = []
        self.mirrors.send = self._send

    def _send(self, verb: str, values: list[Any]) -> None:
        self.sent.append((verb, values))
        for node in self.nodes:
            perform(node, verb, json.loads(json.dumps(values)))

    def close(self) -> None:
        for pages in (self.mirrors, *self.nodes):
            pages.close()

    def asked(self, pages: Pages) -> list[list[int]]:
        """The half of each page that says what is asked of the rank, without the time."""
        half = Writer.SUPERVISOR.value
        return [[page.q[word] for word in half if word != words.DEADLINE] for page in pages.pages]


@given(calls=st.lists(VERBS, max_size=12))
def test_the_same_is_asked_of_mirrors_and_pages(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[Any, ...]]
) -> None:
    job = Job(tmp_path_factory.mktemp("job"))
    for verb, *values in calls:
        getattr(job.mirrors, verb)(*values)
        assert job.asked(job.mirrors) == job.asked(job.nodes[0]) + job.asked(job.nodes[1]), verb
    assert len(job.sent) == len(calls), "each is sent once"
    job.close()


def test_an_attempt_is_prepared_in_silence(tmp_path: Path) -> None:
    """The nodes do it when they start their ranks: until then the ranks of the last attempt may live there."""
    job = Job(tmp_path)
    job.mirrors.prepare(Resume.MEMORY, 7, 9)
    assert job.sent == []
    assert job.mirrors.prepared == (Resume.MEMORY, 7, 9)
    job.mirrors.hold_at(3)
    assert job.sent == [("hold", [3])], "and only that is silent"
    job.close()


def test_a_deadline_is_told_as_what_is_left_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine counts its own nanoseconds."""
    job = Job(tmp_path)
    clock = iter([1_000, 900_000])  # the head's, the nodes'
    job.nodes.pop()
    monkeypatch.setattr("ftlaunch.nodes.cluster.mirrors.cluster_pages.time.monotonic_ns", lambda: next(clock))
    job.mirrors.ask_stop(5, 3_000)
    assert job.nodes[0][0].deadline_ns == 902_000
    job.mirrors.close()
    job.nodes[0].close()


def test_memory_that_is_lost_is_lost_in_its_mirrors_only(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for page in job.mirrors.pages:
        page.set_slot(0, 5)
    assert job.mirrors.newest_common() == 5
    job.mirrors.forget(2, 2)
    assert job.mirrors.newest_common() == NONE
    assert [5 in job.mirrors[rank].slot_steps() for rank in range(4)] == [True, True, False, False]
    job.close()


@pytest.mark.parametrize(
    ("verb", "values"),
    [("close", []), ("prepare", [1, 2, 3]), ("hold", []), ("hold", [1, 2]), ("leave", [1]), ("stop", [1]),
     ("every", [1]), ("decide", [1, 2]), ("decide", [99, 0, 0]), ("hold", ["1"]), ("hold", [1 << 62]), ("", [])],
)  # fmt: skip
def test_a_node_does_nothing_else(tmp_path: Path, verb: str, values: list[Any]) -> None:
    job = Job(tmp_path)
    before = job.asked(job.nodes[0])
    with pytest.raises(ValueError, match=r"."):
        perform(job.nodes[0], verb, values)
    assert job.asked(job.nodes[0]) == before
    job.close()
