"""The arbiter of nodes that share nothing: a head leads with the votes of a majority of the voters.

Until the head has made nodes the job's voters, and where too few nodes take part, the head's own run dir says who the
head is, as on one machine. From the first record on, it is what a majority of the voters keeps.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ftlaunch.nodes.channel.claims import Claims, Sign, is_alive_here, refuse_commit
from ftlaunch.nodes.channel.votes.records import Answer, Record, Voter, have_majority, newest_of

Enough = Callable[[Mapping[str, Answer]], bool]
"""returns whether these answers, by the name of the voter, are enough"""


@dataclass(frozen=True)
class Wanted:
    """The voters that a head wants."""

    voters: tuple[Voter, ...]
    own: Voter
    """the voter of the head's machine, which is the only one as long as there are none"""
    others: tuple[Voter, ...] = ()
    """those of other nodes, which have no vote: they are told who the voters are, so that their nodes find the head"""


class VoterPort(Protocol):
    """How the voters are reached; the simulation has a port of its own."""

    def read_own(self) -> Record | None:
        """Return what this machine's voter has written, or None if it was never a voter of this job.

        Raises:
            OSError: the disk does not answer.
        """

    def forget_own(self) -> bool:
        """Remove what this machine's voter has written. Return False if a voter of this run dir is running.

        Raises:
            OSError: the disk does not answer.
        """

    def ask(self, voters: Sequence[Voter], offered: Record | None, enough: Enough) -> dict[str, Answer]:
        """Ask voters what they keep, and offer them a record. Return their answers, by name.

        Args:
            voters: whom to ask.
            offered: the record, or None to ask only.
            enough: ends the call once it returns True; else the call ends when all have answered or no more will.
        """


class VotedClaims:
    """The arbiter of one job whose nodes may share nothing. For one thread at a time."""

    def __init__(
        self,
        local: Claims,
        voters: VoterPort,
        stale_seconds: float,
        is_alive_here: Callable[[Sign], bool] = is_alive_here,
    ) -> None:
        """Use the claims in the run dir of this machine as long as there are no voters.

        Args:
            local: those claims.
            voters: reaches the voters.
            stale_seconds: seconds after which a sign of life is no longer one.
            is_alive_here: returns whether the head of a sign is a living process of this machine.
        """
        self._is_alive_here = is_alive_here
        self._local = local
        self._voters = voters
        self._stale_seconds = stale_seconds
        self._mine: Record | None = None  # what this process, as the head, has shown to a majority
        self._confirms_voters = False  # the next sign says who the voters are, against what an older record says
        self._told: set[Voter] = set()  # of `Wanted.others`, those that know the voters of now
        self._newer: Sign | None = None  # the sign of a newer head, because of which a voter has refused this one
        self._least_term = 0  # of the terms that this process may claim
        self.where = local.where

    # --- what all arbiters do ---------------------------------------------------------------------------------

    def read(self) -> Sign | None:
        """Return the newest sign, or None if there is none, or if too few voters answer to know it.

        Where too few answer, the sign of a head that one of them has heard lately still shows where the head is.
        """
        try:
            known = self._known()
            if known is None:
                return self._local.read()
            record, answers = self._ask_newest(known)
        except OSError:
            return None
        if have_majority(answers.keys(), record.electorates):
            return record.sign
        heard = [answer.kept for answer in answers.values() if answer.age_seconds < self._stale_seconds]
        newest = newest_of(heard)
        return None if newest is None else newest.sign

    def newest(self) -> Sign | None:
        """Return the newest sign, or None if there is none.

        Raises:
            OSError: too few voters answer.
        """
        known = self._known()
        return self._local.newest() if known is None else self._read_majority(known).sign

    def next_term(self) -> int:
        """Return the term after all claimed ones.

        Raises:
            OSError: too few voters answer.
        """
        known = self._known()
        least = max(self._least_term, self._local.next_term())
        return least if known is None else max(least, 1 + self._read_majority(known).sign.term)

    def claim(self, sign: Sign) -> bool:
        """Ask the voters for their votes for the term of `sign`.

        Returns:
            False if no majority has voted for this process.

        Raises:
            OSError: there are no voters, and the claim cannot be written in the run dir.
        """
        known = self._known()
        if known is None:
            return self._local.claim(sign)
        record, _ = self._ask_newest(known)
        offered = replace(record, sign=sign)
        if not self._is_taken(offered, self._offer(offered)):
            return False
        self._mine = offered
        self._confirms_voters = True
        return True

    def show(self, sign: Sign) -> None:
        """Replace the sign of life by `sign`.

        Raises:
            OSError: no majority has taken it. PermissionError: a newer head has taken over.
        """
        mine = self._mine
        if mine is None:
            self._local.show(sign)
            return
        since = (sign.term, sign.count) if self._confirms_voters else mine.since
        self._write(replace(mine, sign=sign, since=since))
        self._confirms_voters = False

    def newer(self, term: int) -> Sign | None:
        """Return the sign of a head with a term above `term`, or None if there is no such head.

        A head that has voters learns this by the refusal of its own signs, and asks nobody: a newer head has the votes
        of a majority, so that no majority takes another sign of this one.

        Raises:
            OSError: there are no voters, and the run dir does not answer.
        """
        if self._mine is None:
            return self._local.newer(term)
        return self._newer if self._newer is not None and self._newer.term > term else None

    def check(self, term: int) -> None:
        """Check that the head of `term` still leads.

        Raises:
            PermissionError: a head of a higher term has claimed the job, or too few voters answer.
        """
        try:
            known = self._known()
            newest = None if known is None else self._read_majority(known).sign
        except OSError as error:
            raise PermissionError(f"the voters cannot be asked who is the head: {error.strerror}") from None
        if newest is None:
            self._local.check(term)
        elif newest.term > term:
            refuse_commit(newest)

    def may_begin(self, *, at_endpoint: bool) -> bool:
        """Return whether a process that has met no head may become one, before it asks for a term.

        The voters are those of an earlier start of the job, or of a head that leads elsewhere. If one of them has heard
        a head lately, that head goes on, and this process must look for it. If a majority answers, and has heard none,
        this process may ask them for their votes. Otherwise what this machine knows of the voters is forgotten: the
        machine at the endpoint begins anew, as under torchrun.

        Args:
            at_endpoint: whether this is the machine at the job's endpoint.

        Raises:
            OSError: the disk of this machine does not answer.
        """
        known = self._known()
        if known is None:
            return True
        # A head outlives the agent of its machine, and with the agent ends the voter there.
        if not at_endpoint or self._is_alive_here(known.sign):
            return False
        if not known.sign.ended:
            answers = self._voters.ask(known.all_voters, None, self._is_heard)
            if self._is_heard(answers):
                return False
            if have_majority(answers.keys(), known.electorates):
                return True
            known = newest_of([known, *(answer.kept for answer in answers.values())]) or known
        self._least_term = known.sign.term + 1
        return self._voters.forget_own()

    # --- the voters -------------------------------------------------------------------------------------------

    @property
    def record(self) -> Record | None:
        """What this process, as the head, has shown to a majority of the voters; None if there are no voters."""
        return self._mine

    def change_voters(self, wanted: Wanted | None, next_sign: Callable[[], Sign]) -> None:
        """Finish a change of the voters that was begun, here or by the head before; then make the one that is wanted.

        Args:
            wanted: the voters that the head, which this process is, wants; None: those that there are.
            next_sign: returns the head's next sign of life, which counts one more.

        Raises:
            OSError: too few voters answer. What was done so far holds, and the call can be repeated.
            PermissionError: a newer head has taken over.
        """
        if self._mine is not None and self._mine.joining:
            self._finish_change(next_sign())
        if wanted is not None and (self._mine is None or self._mine.voters != wanted.voters):
            self._begin_change(next_sign(), wanted)
            self._finish_change(next_sign())
        if wanted is not None and self._mine is not None and not self._mine.joining:
            self._tell([voter for voter in wanted.others if voter not in self._told], self._mine)

    def _tell(self, others: Sequence[Voter], record: Record) -> None:
        """Give others, which have no vote, a record that names the voters. Those that do not answer are told again."""
        if others:
            answers = self._voters.ask(others, record, lambda answers: len(answers) == len(others))
            self._told.update(voter for voter in others if voter.name in answers)

    def _begin_change(self, sign: Sign, wanted: Wanted) -> None:
        """Make the first step to other voters: from now on a majority of both is needed.

        If this raises, a voter may have taken the step nevertheless. The next sign of life puts the old voters in its
        place: as long as the second step was not tried, nobody has counted the new ones alone.
        """
        if self._mine is None:
            self._mine = Record(sign=sign, voters=(wanted.own,), joining=(), since=(sign.term, 0))
        self._confirms_voters = True
        self._write(replace(self._mine, sign=sign, joining=wanted.voters, since=(sign.term, sign.count)))
        self._confirms_voters = False

    def _finish_change(self, sign: Sign) -> None:
        """Make the second step: the old voters are no longer needed."""
        between = self._mine
        assert between is not None
        record = Record(sign=sign, voters=between.joining, joining=(), since=(sign.term, sign.count))
        self._write(record, to=between.all_voters)
        self._told.clear()

    # --- a majority -------------------------------------------------------------------------------------------

    def _known(self) -> Record | None:
        """Return a record that names voters: the newest that this process or this machine's voter knows."""
        own = self._voters.read_own()
        known = [record for record in (own, self._mine) if record is not None]
        return max(known, key=lambda record: (record.since, record.order), default=None)

    def _ask_newest(self, known: Record) -> tuple[Record, dict[str, Answer]]:
        """Return the newest record that the newest known voters keep, and their answers."""
        while True:
            answers = self._voters.ask(known.all_voters, None, self._is_majority_of(known))
            kept = [answer.kept for answer in answers.values() if answer.kept is not None]
            voters = max((record.since for record in kept), default=known.since)
            if voters <= known.since:
                newest = newest_of([known, *kept])
                assert newest is not None
                return replace(known, sign=newest.sign), answers
            known = next(record for record in kept if record.since == voters)

    def _read_majority(self, known: Record) -> Record:
        """Return what a majority of the newest voters keeps. Raises OSError if too few answer."""
        record, answers = self._ask_newest(known)
        if not have_majority(answers.keys(), record.electorates):
            raise _too_few(record, answers)
        return record

    def _offer(self, offered: Record, to: Sequence[Voter] | None = None) -> dict[str, Answer]:
        voters = offered.all_voters if to is None else to
        return self._voters.ask(voters, offered, lambda answers: self._is_taken(offered, answers))

    def _write(self, offered: Record, to: Sequence[Voter] | None = None) -> None:
        """Have a majority of the voters take a record of the head that this process is.

        Raises:
            OSError: no majority has taken it. PermissionError: a newer head has taken over.
        """
        answers = self._offer(offered, to)
        if self._is_taken(offered, answers):
            self._mine = offered
            return
        newest = newest_of(answer.kept for answer in answers.values())
        if newest is not None and newest.sign.term > offered.sign.term:
            self._newer = newest.sign
            refuse_commit(newest.sign)
        raise _too_few(offered, answers)

    def _is_taken(self, offered: Record, answers: Mapping[str, Answer]) -> bool:
        return have_majority([name for name, answer in answers.items() if answer.taken], offered.electorates)

    def _is_majority_of(self, known: Record) -> Enough:
        return lambda answers: have_majority(answers.keys(), known.electorates)

    def _is_heard(self, answers: Mapping[str, Answer]) -> bool:
        """Return whether one of the voters has heard a head of a job that goes on lately."""
        return any(
            answer.age_seconds < self._stale_seconds and answer.kept is not None and not answer.kept.sign.ended
            for answer in answers.values()
        )


def _too_few(record: Record, answers: Collection[str]) -> OSError:
    there = sum(voter.name in answers for voter in record.all_voters)
    why = f"{there} of the {len(record.all_voters)} nodes that elect the head have answered"
    return OSError(errno.EHOSTUNREACH, why, "the voters")
