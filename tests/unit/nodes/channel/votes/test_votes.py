"""Who is elected, who may still lead, and how the voters change: the rules, over voters in memory."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.nodes.channel.votes.claims import Enough, VotedClaims, Wanted
from ftlaunch.nodes.channel.votes.records import (
    Answer,
    Record,
    Voter,
    VoterFile,
    decode,
    dump,
    encode,
    have_majority,
    is_of_another_job,
    may_take,
    must_be_written,
    parse,
    take,
)

STALE = 3.0
A, B, C, D, E = VOTERS = tuple(Voter(name, f"10.0.0.{number}", 7000) for number, name in enumerate("ABCDE", 1))


def sign(term: int, machine: str = "a", count: int = 0) -> Sign:
    return Sign(term, f"10.0.0.{machine}", 29400, machine, 1, 1, count)


def signs(term: int, machine: str = "a") -> Iterator[Sign]:
    """The signs of life of one head, without the first, with which it has claimed its term."""
    return (sign(term, machine, count) for count in itertools.count(1))


def record(term: int, count: int, since: tuple[int, int] = (1, 1), machine: str = "a") -> Record:
    return Record(sign(term, machine, count), (A, B, C), (), since)


class Voters:
    """What the voters of one job keep, as one process reaches them. `away`: those that it does not reach."""

    def __init__(self, kept: dict[str, Record | None], own: str) -> None:
        self.kept = kept
        self.own = own
        self.away: set[str] = set()
        self.mute: set[str] = set()  # those whose answers are lost
        self.ages: dict[str, float] = {}

    def read_own(self) -> Record | None:
        return self.kept.get(self.own)

    def forget_own(self) -> bool:
        self.kept.pop(self.own, None)
        return True

    def ask(self, voters: Sequence[Voter], offered: Record | None, enough: Enough) -> dict[str, Answer]:
        answers = {}
        for voter in voters:
            if voter.name in self.away:
                continue
            answer = take(self.kept.get(voter.name), offered, self.ages.get(voter.name, math.inf))
            self.kept[voter.name] = answer.kept
            if voter.name not in self.mute:
                answers[voter.name] = answer
        return answers


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


class Job:
    """A job whose head on machine a has made A, B and C the voters."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kept: dict[str, Record | None] = {}
        self.numbers = signs(1)
        self.head = self.on("A")
        self.of_head = self.voters
        assert self.head.claim(sign(1))
        self.head.change_voters(Wanted((A, B, C), A), self.numbers.__next__)

    def on(self, machine: str) -> VotedClaims:
        """The arbiter of a process on a voter's machine."""
        (self.home / machine).mkdir(exist_ok=True)
        self.voters = Voters(self.kept, machine)
        return VotedClaims(Claims(self.home / machine), self.voters, STALE)


def test_one_vote_a_term() -> None:
    assert may_take(None, record(1, 0))
    assert may_take(record(1, 9), record(2, 0))
    assert may_take(record(2, 0), record(2, 0)), "the answer was lost, and the same candidate asks again"
    assert not may_take(record(2, 0), record(2, 0, machine="b"))
    assert not may_take(record(3, 0), record(2, 0))


def test_a_sign_of_the_elected_head_takes_the_place_of_a_vote_for_another_candidate() -> None:
    assert may_take(record(2, 0, machine="b"), record(2, 1))
    assert not may_take(record(2, 5), record(2, 4))
    assert not may_take(record(3, 0), record(2, 9))


def test_no_vote_for_one_that_does_not_know_the_newest_voters() -> None:
    assert not may_take(record(1, 9, since=(1, 8)), record(2, 0, since=(1, 1)))
    assert may_take(record(1, 9, since=(1, 8)), record(2, 1, since=(1, 1))), "an elected head overrules a change"


@pytest.mark.parametrize(
    ("names", "majority"), [("AB", True), ("A", False), ("ABC", True), ("DE", False), ("ADE", False)]
)
def test_a_majority_of_three(names: str, majority: bool) -> None:
    assert have_majority(names, [(A, B, C)]) is majority


def test_two_of_four_and_one_of_two_are_no_majority() -> None:
    assert not have_majority("AB", [(A, B, C, D)])
    assert not have_majority("A", [(A, B)])
    assert not have_majority("ABC", [(A, B, C), (C, D, E)]), "of the voters before and of those that join"
    assert have_majority("BCD", [(A, B, C), (C, D, E)])


def test_until_there_are_voters_the_run_dir_says_who_the_head_is(tmp_path: Path) -> None:
    first = VotedClaims(Claims(tmp_path), Voters({}, "A"), STALE)
    second = VotedClaims(Claims(tmp_path), Voters({}, "A"), STALE)
    assert first.next_term() == 1
    assert first.claim(sign(1))
    assert second.newest() == sign(1)
    assert not second.claim(sign(1, "b"))
    second.check(1)
    assert first.record is None


def test_the_voters_keep_who_the_head_is(job: Job) -> None:
    assert {name: kept.order if kept else None for name, kept in job.kept.items()} == dict.fromkeys("ABC", (1, 2))
    assert job.on("B").newest() == sign(1, count=2)
    assert job.on("C").next_term() == 2
    job.on("C").check(1)


def test_the_others_elect_a_head_and_the_one_before_learns_it_from_a_refusal(job: Job) -> None:
    on_b = job.on("B")
    job.voters.away = {"A"}
    assert on_b.claim(sign(2, "b"))
    on_b.show(sign(2, "b", 1))
    assert job.head.newer(1) is None
    with pytest.raises(PermissionError, match="another head has taken over"):
        job.head.show(sign(1, count=3))
    assert job.head.newer(1) == sign(2, "b", 1)
    with pytest.raises(PermissionError, match="another head has taken over"):
        job.on("A").check(1)


def test_of_two_candidates_for_a_term_one_is_elected(job: Job) -> None:
    on_b, on_c = job.on("B"), job.on("C")
    assert on_b.claim(sign(2, "b"))
    assert not on_c.claim(sign(2, "c"))
    assert on_c.record is None


def test_without_a_majority_nobody_is_elected_or_commits(job: Job) -> None:
    on_b = job.on("B")
    job.voters.away = {"A", "C"}
    assert not on_b.claim(sign(2, "b"))
    with pytest.raises(OSError, match="1 of the 3 nodes that elect the head have answered"):
        on_b.next_term()
    with pytest.raises(OSError, match="1 of the 3"):
        on_b.newest()
    with pytest.raises(PermissionError, match="the voters cannot be asked who is the head"):
        on_b.check(1)
    assert on_b.read() is None


def test_a_head_that_one_voter_has_heard_lately_can_be_followed(job: Job) -> None:
    on_b = job.on("B")
    job.voters.away = {"A", "C"}
    job.voters.ages = {"B": STALE / 2}
    assert on_b.read() == sign(1, count=2)


def test_a_head_without_a_majority_shows_no_sign(job: Job) -> None:
    job.of_head.away = {"B", "C"}
    with pytest.raises(OSError, match="1 of the 3"):
        job.head.show(sign(1, count=3))
    job.of_head.away = {"C"}
    job.head.show(sign(1, count=4))
    assert job.on("B").newest() == sign(1, count=4)


# --- the voters change ------------------------------------------------------------------------------------


def test_other_voters_need_no_vote_of_the_old_ones(job: Job) -> None:
    job.head.change_voters(Wanted((A, D, E), A), job.numbers.__next__)
    on_e = job.on("E")
    job.voters.away = {"A", "D"}
    assert not on_e.claim(sign(2, "e")), "B and C have no vote any more"
    job.voters.away = {"A", "B", "C"}
    assert on_e.claim(sign(3, "e"))


def test_one_that_knows_only_the_old_voters_finds_the_new_ones(job: Job) -> None:
    before = dict(job.kept)
    job.head.change_voters(Wanted((A, D, E), A), job.numbers.__next__)
    job.kept["B"] = before["B"]  # B was cut off meanwhile
    on_b = job.on("B")
    assert on_b.newest() == sign(1, count=4)
    assert on_b.claim(sign(2, "b"))
    assert on_b.record is not None
    assert on_b.record.voters == (A, D, E)


def test_between_the_two_steps_a_majority_of_both_is_needed(job: Job) -> None:
    real = job.of_head.ask

    def ask(asked: Sequence[Voter], offered: Record | None, enough: Enough) -> dict[str, Answer]:
        if offered is not None and not offered.joining:
            return {}  # the head dies before the second step
        return real(asked, offered, enough)

    job.of_head.ask = ask  # type: ignore[method-assign]
    with pytest.raises(OSError, match="0 of the"):
        job.head.change_voters(Wanted((C, D, E), A), job.numbers.__next__)
    on_d = job.on("D")
    job.voters.away = {"A", "B"}
    assert not on_d.claim(sign(2, "d")), "C, D and E are not the voters yet"
    job.voters.away = {"A"}
    assert on_d.claim(sign(3, "d"))
    on_d.show(sign(3, "d", 1))
    on_d.change_voters(None, signs(4, "d").__next__)
    assert on_d.record is not None
    assert (on_d.record.voters, on_d.record.joining) == ((C, D, E), ())


def test_a_change_that_has_failed_is_overruled_by_the_next_sign(job: Job) -> None:
    """Taken out (`_confirms_voters`): whoever reads what one voter has taken needs voters that may not exist."""
    voters = job.of_head
    voters.away = {"B", "D", "E"}
    voters.mute = {"C"}
    with pytest.raises(OSError, match="of the 5"):
        job.head.change_voters(Wanted((A, D, E), A), job.numbers.__next__)
    voters.away, voters.mute = {"C", "D", "E"}, set()
    job.head.show(next(job.numbers))
    on_b = job.on("B")
    job.voters.away = {"D", "E", "A"}
    assert on_b.claim(sign(2, "b")), "C still keeps the step"
    assert on_b.record is not None
    assert (on_b.record.voters, on_b.record.joining) == ((A, B, C), ())


def test_nodes_without_a_vote_are_told_who_the_voters_are(job: Job) -> None:
    job.head.change_voters(Wanted((A, B, C), A, (D, E)), job.numbers.__next__)
    for name in ("D", "E"):
        kept = job.kept[name]
        assert kept is not None
        assert kept.voters == (A, B, C)
    on_d = job.on("D")
    assert on_d.newest() == sign(1, count=2)


# --- the beginning ----------------------------------------------------------------------------------------


def test_a_machine_that_comes_back_does_not_begin_beside_a_head_elsewhere(job: Job) -> None:
    on_a = job.on("A")
    job.voters.away = {"A"}
    job.voters.ages = {"B": STALE / 2}
    assert not on_a.may_begin(at_endpoint=True)
    assert job.kept["A"] is not None


def test_where_no_voter_has_heard_a_head_the_endpoint_begins_anew_with_a_higher_term(job: Job) -> None:
    on_a = job.on("A")
    job.voters.away = {"A", "C"}
    job.kept["B"] = record(6, 0)
    assert on_a.may_begin(at_endpoint=True)
    assert on_a.next_term() == 7
    assert on_a.newest() == sign(1), "what the run dir of this machine says"


def test_another_machine_than_that_of_the_endpoint_keeps_what_it_knows(job: Job) -> None:
    on_b = job.on("B")
    assert not on_b.may_begin(at_endpoint=False)
    assert job.kept["B"] is not None


def test_a_voter_that_served_another_job_is_of_no_use_to_it_any_more() -> None:
    kept = record(4, 7)
    assert is_of_another_job(kept, sign(3).process, 3)
    assert is_of_another_job(kept, sign(4, "b").process, 4)
    assert not is_of_another_job(kept, sign(4).process, 4)
    assert not is_of_another_job(kept, sign(5, "b").process, 5)


def test_votes_and_voters_are_written_and_further_signs_are_not() -> None:
    kept = record(4, 7)
    assert not must_be_written(kept, record(4, 8))
    assert must_be_written(None, kept)
    assert must_be_written(kept, record(5, 0, machine="b"))
    assert must_be_written(kept, record(4, 8, since=(4, 8)))
    assert must_be_written(kept, replace(record(4, 8), joining=(D,)))
    assert must_be_written(kept, replace(kept, sign=replace(kept.sign, count=8, over=0))), "the job has ended"


# --- on disk and on the wire ------------------------------------------------------------------------------


def test_a_record_is_written_and_read() -> None:
    made = replace(record(3, 4), joining=(D, E))
    assert parse(json.loads(json.dumps(dump(made)))) == made
    assert parse(dump(None)) is None
    kept = VoterFile("A", "boot", 7000, made)
    assert decode(encode(kept)) == kept
    left = kept.leave("B")
    assert (left.record, left.known) == (None, made)
    assert decode(encode(left)) == left


@pytest.mark.parametrize(
    "change",
    [
        {"sign": {}}, {"sign": 3}, {"since": [1]}, {"since": ["a", 1]}, {"voters": []}, {"voters": [{"name": "A"}]},
        {"joining": None}, {"voters": [{"name": "A", "address": "a host", "port": 1}]},
        {"voters": [{"name": "A", "address": "10.0.0.1", "port": 70000}]},
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse({**json.loads(json.dumps(dump(record(1, 1)))), **change})
