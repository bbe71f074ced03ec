"""The simulation finds what it is for: each of these bugs, planted, ends some story badly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_simulation import loses_steps, simulate

from ftlaunch.agent.lease import Lease
from ftlaunch.checkpoints.final_save import FinalSave
from ftlaunch.cluster.cluster import Cluster
from ftlaunch.cluster.held_steps import HeldSteps
from ftlaunch.cluster.membership.fences import Fences
from ftlaunch.cluster.membership.roster import Roster
from ftlaunch.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.cluster.nodes.reports import Reports
from ftlaunch.cluster.regrouping import Regrouping

MOST_SEEDS = 120


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fences, "all_down", lambda self, now: True)


def _no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "is_over", lambda self, now: False)


def _lease_of_any_word(patch: pytest.MonkeyPatch) -> None:
    """The lease is renewed by whatever is sent, heard or not."""

    def sent(self: Lease, beat: int, now: float) -> None:
        self.renew(now)

    patch.setattr(Lease, "sent", sent)


def _any_lineage(patch: pytest.MonkeyPatch) -> None:
    """A node's memory counts whatever attempt it is of."""
    real = HeldSteps._take_up

    def take_up(self: HeldSteps, node: Any) -> None:
        node.member.lineage = self.lineage or node.lineage
        real(self, node)

    patch.setattr(HeldSteps, "_take_up", take_up)


def _beats_of_other_attempts_count(patch: pytest.MonkeyPatch) -> None:
    """What pages say of another attempt comes into the mirrors."""
    real = Reports.take

    def take(self: Reports, node: Any, name: str, message: dict[str, Any], ranks: range) -> None:
        real(self, node, name, {**message, "lineage": self.lineage} if name == "beat" else message, ranks)

    patch.setattr(Reports, "take", take)


def _two_nodes_in_a_place(patch: pytest.MonkeyPatch) -> None:
    """A node that has come back gets the place that it had, whoever has it now."""
    real = Roster.join

    def join(self: Roster, member: Any) -> None:
        member.place = member.held
        real(self, member)

    patch.setattr(Roster, "join", join)


def _memory_of_the_lost_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterPages, "forget", lambda self, first, count: None)


def _a_head_adopts_nobody(patch: pytest.MonkeyPatch) -> None:
    """A new head begins at once, beside ranks that run on."""

    def heed(self: Cluster, node: Any) -> None:
        return

    patch.setattr(Cluster, "_heed_running", heed)


def _memory_of_another_number_of_nodes_counts(patch: pytest.MonkeyPatch) -> None:
    def resize(self: ClusterPages, ranks: int) -> None:
        self.pages = self._all[:ranks]

    patch.setattr(ClusterPages, "resize", resize)


def _a_drained_nodes_memory_counts(patch: pytest.MonkeyPatch) -> None:
    real = Regrouping._dismiss

    def dismiss(self: Regrouping, node: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ClusterPages, "forget", lambda self, first, count: None)
            real(self, node)

    patch.setattr(Regrouping, "_dismiss", dismiss)


def _nothing_is_saved_before_nodes_change(patch: pytest.MonkeyPatch) -> None:
    """The next attempt goes on from an older checkpoint, or begins again, though memory had a newer step."""
    patch.setattr(FinalSave, "_is_saved", lambda self: True)


ELASTIC: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "memory of another number of nodes": _memory_of_another_number_of_nodes_counts,
    "the memory of a drained node": _a_drained_nodes_memory_counts,
    "nothing is saved before nodes change": _nothing_is_saved_before_nodes_change,
}
BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no fence": _no_fence,
    "no lease": _no_lease,
    "a lease that any word renews": _lease_of_any_word,
    "memory of any attempt": _any_lineage,
    "beats of other attempts": _beats_of_other_attempts_count,
    "two nodes in a place": _two_nodes_in_a_place,
    "the memory of a lost node counts": _memory_of_the_lost_counts,
    "a head that adopts nobody": _a_head_adopts_nobody,
}
STORIES = {"beats of other attempts": {"faults": 8, "nodes": 3, "least": 1, "requests": 3}}
"""of a bug, where they are not as usual: here a node has a place long before its ranks start"""
CORPUS = (1, 54, 10, 3)
"""seeds whose stories have found bugs: they are tried first, so that a search is needed only after stories changed"""


@pytest.mark.parametrize("bug", ELASTIC)
def test_a_bug_of_changing_nodes_is_found(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ELASTIC[bug](monkeypatch)
    for seed in range(MOST_SEEDS):
        home = tmp_path / str(seed)
        home.mkdir()
        try:
            story = simulate(seed, home, faults=0, nodes=3, standbys=2, least=2, requests=6).world.story
        except AssertionError:
            return
        if loses_steps(story):
            return
    pytest.fail(f"{MOST_SEEDS} stories end well with this bug")


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for seed in dict.fromkeys((*CORPUS, *range(MOST_SEEDS))):
        home = tmp_path / str(seed)
        home.mkdir()
        try:
            simulate(seed, home, **STORIES.get(bug, {"faults": 6, "nodes": 2}))
        except AssertionError:
            return
    pytest.fail(f"{MOST_SEEDS} stories end well with this bug")
