"""The simulation finds what it is for: each of these bugs, planted, ends some story badly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_simulation import loses_steps
from tests.support.simulation import corpus
from tests.support.simulation import story as stories
from tests.support.simulation.job import simulate
from tests.support.simulation.laws import Broken
from tests.support.simulation.story import REQUESTS, Story, of_seed

from ftlaunch.checkpoints.final_save import FinalSave
from ftlaunch.nodes.agent.lease import Lease
from ftlaunch.nodes.agent.takeover import Takeover
from ftlaunch.nodes.cluster.cluster import Cluster
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.copies.held_steps import HeldSteps
from ftlaunch.nodes.cluster.copies.peer_copies import PeerCopies
from ftlaunch.nodes.cluster.leadership import Leadership
from ftlaunch.nodes.cluster.membership import plan
from ftlaunch.nodes.cluster.membership.fences import Fences
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.nodes.cluster.older_ranks import OlderRanks
from ftlaunch.nodes.cluster.regrouping import Regrouping
from ftlaunch.policy.restart_policy import Budget
from ftlaunch_contract.pages.page import Page

MOST_SEEDS = 400


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fences, "all_down", lambda self, now: True)


def _no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "is_over", lambda self, now: False)


def _lease_of_any_word(patch: pytest.MonkeyPatch) -> None:
    """The lease is renewed by whatever is sent, heard or not."""

    def record_sent(self: Lease, beat: int, now: float) -> None:
        self.renew(now)

    patch.setattr(Lease, "record_sent", record_sent)


def _any_lineage(patch: pytest.MonkeyPatch) -> None:
    """A node's memory counts whatever attempt it is of."""
    real = HeldSteps.load_steps

    def load_steps(self: HeldSteps, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.member.place >= 0 and node.slots is not None:
                node.member.lineage = self.lineage or node.lineage
            real(self, [node])

    patch.setattr(HeldSteps, "load_steps", load_steps)


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

    def meet(self: OlderRanks, node: Any) -> None:
        return

    patch.setattr(OlderRanks, "meet", meet)


def _memory_of_another_number_of_nodes_counts(patch: pytest.MonkeyPatch) -> None:
    real = ClusterPages.resize

    def resize(self: ClusterPages, ranks: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Page, "format", lambda self: None)
            real(self, ranks)

    patch.setattr(ClusterPages, "resize", resize)


def _a_drained_nodes_memory_counts(patch: pytest.MonkeyPatch) -> None:
    real = Regrouping.change

    def change(self: Regrouping, saved: bool) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ClusterPages, "forget", lambda self, first, count: None)
            real(self, saved)

    patch.setattr(Regrouping, "change", change)


def _nothing_is_saved_before_nodes_change(patch: pytest.MonkeyPatch) -> None:
    """The next attempt goes on from an older checkpoint, or begins again, though memory had a newer step."""
    patch.setattr(FinalSave, "is_saved", lambda self: True)


def _older_ranks_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A new head that nobody tells of running ranks begins at once."""
    patch.setattr(OlderRanks, "may_run", lambda self: False)


def _two_attempts_have_one_name(patch: pytest.MonkeyPatch) -> None:
    """A new head counts its attempts from 0 under the name of the run before."""
    real = Cluster.__init__

    def begin(self: Cluster, context: ClusterContext) -> None:
        real(self, context if context.plan is None else replace(context, run=context.plan.run))

    patch.setattr(Cluster, "__init__", begin)


def _a_head_that_is_not_seen_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "may_go_on", lambda self: True)


def _the_budget_counts_for_one_head(patch: pytest.MonkeyPatch) -> None:
    """A new head begins with all of it."""
    real = plan.read

    def read(run_dir: Path) -> plan.Plan | None:
        found = real(run_dir)
        return None if found is None else replace(found, budget=Budget(found.budget.limits))

    patch.setattr(plan, "read", read)


def _nobody_is_left_to_start_a_head(patch: pytest.MonkeyPatch) -> None:
    """A node without a place never does, though no other one lives."""
    real = Takeover.is_due

    def is_due(self: Takeover, last_message_at: float, place: int, *, at_home: bool) -> bool:
        return place >= 0 and real(self, last_message_at, place, at_home=at_home)

    patch.setattr(Takeover, "is_due", is_due)


def _a_copy_counts_as_ones_own(patch: pytest.MonkeyPatch) -> None:
    """What a node keeps for the place that it gets counts as a snapshot of its own ranks."""
    patch.setattr(PeerCopies, "keeper_number", lambda self, node: node.member.place)


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
    "two nodes in a place": _two_nodes_in_a_place,
    "the memory of a lost node counts": _memory_of_the_lost_counts,
    "a head that adopts nobody": _a_head_adopts_nobody,
    "older ranks are not waited for": _older_ranks_are_not_waited_for,
    "two attempts have one name": _two_attempts_have_one_name,
    "a head that is not seen goes on": _a_head_that_is_not_seen_goes_on,
    "the budget counts for one head": _the_budget_counts_for_one_head,
    "a copy counts as a snapshot of one's own": _a_copy_counts_as_ones_own,
    "nobody is left to start a head": _nobody_is_left_to_start_a_head,
}


def is_found(story: Story) -> bool:
    """Whether a story ends badly."""
    try:
        simulate(story)
    except Broken:
        return True
    return False


@pytest.mark.parametrize("bug", ELASTIC)
def test_a_bug_of_changing_nodes_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ELASTIC[bug](monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            course = simulate(of_seed(seed, kinds=REQUESTS, nodes=3, standbys=2, least=2)).world.story
        except Broken:
            return
        if loses_steps(course):
            return
    pytest.fail(f"{MOST_SEEDS} stories end well with this bug")


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    own_first = sorted(corpus.kept(), key=lambda path: f"`{bug}`" not in path.read_text())
    if any(is_found(stories.read(path)) for path in own_first):
        return
    if not any(is_found(of_seed(seed)) for seed in range(MOST_SEEDS)):
        pytest.fail(f"all kept stories and {MOST_SEEDS} others end well with this bug")
