"""Jobs whose nodes elect the head, under random faults, in simulated time; and the bugs that these stories find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from tests.support.simulation import votes
from tests.support.simulation.job import simulate
from tests.support.simulation.laws import Broken
from tests.support.simulation.machine import Machine
from tests.support.simulation.story import FAULTS, REQUESTS, Fault, Story, of_seed
from tests.support.simulation.votes import Disk, SimVoter, VotedStorage

from ftlaunch.nodes.channel.votes import claims, records
from ftlaunch.nodes.channel.votes.records import Record, Voter

STORIES = 60
MOST_SEEDS = 600


def voted(seed: int, *, kinds: Iterable[str] = FAULTS, **fixed: object) -> Story:
    """A job of three places or more whose nodes elect the head."""
    return replace(of_seed(seed, kinds=tuple(kinds), nodes=3 + seed % 2, **fixed), votes=True)


@pytest.mark.parametrize("first", [0, pytest.param(STORIES, marks=pytest.mark.long)])
def test_every_story_ends_well(first: int) -> None:
    fired: set[str] = set()
    elected = given_way = changed = 0
    for seed in range(first, first + STORIES):
        job = simulate(voted(seed, kinds=(*FAULTS, *REQUESTS)))
        fired |= job.fired
        elected += sum("takes the head's place" in line for line in job.world.story)
        given_way += sum("gives way" in line for line in job.world.story)
        changed += sum("nodes elect the head" in line for line in job.world.story)
    assert fired >= set(FAULTS)
    assert elected > 5
    assert given_way, "no head at the endpoint was told of one elsewhere"
    assert changed > STORIES


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2_000_000, 2_010_000, 250))
def test_every_story_of_the_sweep_ends_well(first: int) -> None:
    for seed in range(first, first + 250):
        assert simulate(voted(seed, kinds=(*FAULTS, *REQUESTS))).world.story


def test_the_lost_machine_of_the_head_costs_no_more_than_any_other() -> None:
    went_on = 0
    for seed in range(12):
        fault = Fault(5.0, "machine", machine=0, seconds=60.0)
        job = simulate(Story(seed, nodes=3, standbys=1, steps=90, votes=True, faults=(fault,)))
        went_on += job.code == 0
    assert went_on == 12


# --- the stories find bugs --------------------------------------------------------------------------------


def _half_is_enough(patch: pytest.MonkeyPatch) -> None:
    def have_majority(names: Sequence[str], electorates: Iterable[Sequence[Voter]]) -> bool:
        return all(2 * sum(voter.name in names for voter in group) >= len(group) - 1 for group in electorates)

    patch.setattr(claims, "have_majority", have_majority)


def _two_votes_a_term(patch: pytest.MonkeyPatch) -> None:
    real = records.may_take

    def may_take(kept: Record | None, offered: Record) -> bool:
        again = kept is not None and offered.sign.count == 0 and offered.sign.term == kept.sign.term
        return again or real(kept, offered)

    patch.setattr(records, "may_take", may_take)


def _a_vote_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A voter that starts anew under its old name has forgotten what it has promised."""
    real = SimVoter.begin

    def begin(self: SimVoter, term: int, head: str) -> None:
        if not self.runs:
            self.disk.written = None
        real(self, term, head)

    patch.setattr(SimVoter, "begin", begin)


def _an_empty_disk_keeps_its_name(patch: pytest.MonkeyPatch) -> None:
    real_empty = VotedStorage.empty_disk

    def empty_disk(self: VotedStorage, machine: Machine) -> None:
        name = self.disk(machine).name
        real_empty(self, machine)
        self.disks[machine.name] = Disk(name=name)

    patch.setattr(VotedStorage, "empty_disk", empty_disk)
    patch.setattr(votes, "is_of_another_job", lambda kept, head, term: False)
    real = SimVoter.begin

    def begin(self: SimVoter, term: int, head: str) -> None:
        self.boot()
        real(self, term, head)

    patch.setattr(SimVoter, "begin", begin)


def _the_new_voters_count_at_once(patch: pytest.MonkeyPatch) -> None:
    """A majority of the new voters is enough while the old ones can still elect a head."""
    patch.setattr(Record, "electorates", property(lambda self: (self.joining or self.voters,)))


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "half of the voters are enough": _half_is_enough,
    "two votes a term": _two_votes_a_term,
    "a vote is forgotten": _a_vote_is_forgotten,
    "an empty disk keeps its name": _an_empty_disk_keeps_its_name,
    "the new voters count at once": _the_new_voters_count_at_once,
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            simulate(voted(seed, kinds=("crash", "cut", "freeze", "head", "head-stall", "machine"), standbys=1))
        except Broken:
            return
    pytest.fail(f"{MOST_SEEDS} stories end well with this bug")
