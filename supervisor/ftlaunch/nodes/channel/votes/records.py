"""What the voters of a job keep: the sign of the newest head, and who the voters are. Pure.

Each voter keeps one record, on its own disk. The voters together are a register that holds one record: what a majority
has taken is what the register holds, because any two majorities share a voter. So the register behaves as one key in
etcd does, and the rest of ftlaunch uses both alike (`channel/arbiter.py`).

The voters can change. A record with `joining` is the step between the old voters and the new ones: as long as it is the
newest, everything needs a majority of both. This is Raft's joint consensus (Ongaro and Ousterhout, 2014).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ftlaunch.nodes.channel.claims import Sign, of_fields
from ftlaunch.nodes.channel.stream import resolve
from ftlaunch_contract.files import untrusted_json

MOST_VOTERS = 9
"""voters of one job; with more, each sign of life of the head would wait for more disks, and gain nothing"""


@dataclass(frozen=True)
class Voter:
    """A process that keeps a record for the others."""

    name: str
    """random, and drawn anew when the voter's disk was empty or its machine was booted: such a voter has no vote until
    the head has made it one of the voters"""
    address: str
    """the numeric address at which other machines find the voter"""
    port: int


@dataclass(frozen=True)
class Record:
    """What one voter keeps."""

    sign: Sign
    """the newest sign of a head that the voter has taken. With `count` 0 it is the voter's vote for a term."""
    voters: tuple[Voter, ...]
    joining: tuple[Voter, ...]
    """the next voters, while the head hands over to them; empty if no change is under way"""
    since: tuple[int, int]
    """term and count of the sign with which these voters came: the newer voters have the larger one"""

    @property
    def order(self) -> tuple[int, int]:
        """What tells the newer of two records."""
        return self.sign.term, self.sign.count

    @property
    def electorates(self) -> tuple[tuple[Voter, ...], ...]:
        """The groups of voters of each of which a majority is needed."""
        return (self.voters, self.joining) if self.joining else (self.voters,)

    @property
    def all_voters(self) -> tuple[Voter, ...]:
        """All voters, each once."""
        return tuple(dict.fromkeys((*self.voters, *self.joining)))


def may_take(kept: Record | None, offered: Record) -> bool:
    """Return whether a voter that keeps `kept` takes `offered` in its place.

    A vote for a term is given once: to the first that asks. It is refused to a candidate that does not know the newest
    voters, because the majority that the candidate would have is no longer one.
    """
    if kept is None or offered == kept:
        return True
    if offered.sign.count == 0:
        return offered.sign.term > kept.sign.term and offered.since >= kept.since
    return offered.order > kept.order


@dataclass(frozen=True)
class Answer:
    """What a voter has answered."""

    taken: bool
    """whether the voter has taken the record that it was offered"""
    kept: Record | None
    """what the voter keeps now"""
    age_seconds: float
    """the time since the voter took that record; infinite if it was started since"""


def is_of_another_job(kept: Record, head: str, term: int) -> bool:
    """Return whether what a voter keeps is not of the head that has now ordered the voter, but of one beside it.

    A head that was started anew at the endpoint knows nothing of the terms before, and may count them anew.

    Args:
        kept: what the voter keeps.
        head: the process of the head that has ordered the voter, as `Sign.process` names it.
        term: the term of that head.
    """
    return kept.sign.term > term or (kept.sign.term == term and kept.sign.process != head)


def must_be_written(before: Record | None, now: Record | None) -> bool:
    """Return whether a voter that takes `now` must have it on its disk before it answers.

    A vote, other voters and the end of the job must be. One more sign of the same head need not be: it promises nothing
    that the sign before has not, and there are four a second.
    """
    if before is None or now is None:
        return before != now
    return replace(before, sign=replace(before.sign, count=now.sign.count)) != now


def take(kept: Record | None, offered: Record | None, age_seconds: float) -> Answer:
    """Return a voter's answer. What it keeps afterwards is `kept` of the answer. Pure.

    Args:
        kept: what the voter keeps.
        offered: what it is offered, or None.
        age_seconds: the time since it took what it keeps.
    """
    if offered is not None and may_take(kept, offered):
        return Answer(taken=True, kept=offered, age_seconds=0.0)
    return Answer(taken=False, kept=kept, age_seconds=age_seconds)


def have_majority(names: Collection[str], electorates: Iterable[Collection[Voter]]) -> bool:
    """Return whether the voters of these names are a majority of each group."""
    return all(2 * sum(voter.name in names for voter in group) > len(group) for group in electorates)


def newest_of(records: Iterable[Record | None]) -> Record | None:
    """Return the record with the newest sign, or None if there is none."""
    return max((record for record in records if record is not None), key=lambda record: record.order, default=None)


def dump(record: Record | None) -> dict[str, Any]:
    """Return a record as JSON can hold it; an empty mapping for None."""
    return {} if record is None else asdict(record)


def parse(fields: Mapping[str, Any]) -> Record | None:
    """Return the record that `dump` has made into `fields`.

    Raises:
        ValueError: it is no record.
    """
    if not fields:
        return None
    try:
        sign = of_fields(untrusted_json.mapping(fields["sign"], "the sign"))
        term, count = untrusted_json.extents(fields["since"], "the age of the voters")
        voters = _voters(fields["voters"])
        joining = _voters(fields["joining"])
    except KeyError as error:
        raise ValueError(f"the record lacks {error}") from None
    if sign is None or not voters:
        raise ValueError("the record lacks a field")
    return Record(sign=sign, voters=voters, joining=joining, since=(term, count))


def _voters(value: object) -> tuple[Voter, ...]:
    return tuple(_parse_voters(value))


def _parse_voters(value: object) -> Iterator[Voter]:
    for fields in untrusted_json.mappings(value, "the voters"):
        voter = Voter(
            name=untrusted_json.text(fields["name"], "the name of a voter"),
            address=untrusted_json.text(fields["address"], "the address of a voter"),
            port=untrusted_json.whole(fields["port"], "the port of a voter"),
        )
        resolve(voter.address, voter.port)
        yield voter


@dataclass(frozen=True)
class VoterFile:
    """The content of a voter's file."""

    name: str
    """the voter's name"""
    boot: str
    """names the boot of the voter's machine"""
    port: int
    """where the voter listens"""
    record: Record | None = None
    """what the voter keeps"""
    former: Record | None = None
    """what it kept for the voters that it has left; it still shows its machine who may be the head"""

    @property
    def known(self) -> Record | None:
        """The newest record that names voters."""
        return self.former if self.record is None else self.record

    def leave(self, name: str) -> VoterFile:
        """Return the content once the voter has left the others, so that it never votes among them again."""
        return replace(self, name=name, record=None, former=self.known)


def encode(content: VoterFile) -> bytes:
    """Return a voter's file as it is written."""
    records = {"record": dump(content.record), "former": dump(content.former)}
    return json.dumps({"name": content.name, "boot": content.boot, "port": content.port, **records}).encode()


def decode(content: bytes) -> VoterFile:
    """Return the content of a voter's file.

    Raises:
        ValueError: it is no such file.
    """
    fields = untrusted_json.mapping(untrusted_json.parse(content), "the file of a voter")
    try:
        return VoterFile(
            name=untrusted_json.text(fields["name"], "the name of the voter"),
            boot=untrusted_json.text(fields["boot"], "the boot of its machine"),
            port=untrusted_json.whole(fields["port"], "its port"),
            record=parse(untrusted_json.mapping(fields["record"], "its record")),
            former=parse(untrusted_json.mapping(fields["former"], "its former record")),
        )
    except KeyError as error:
        raise ValueError(f"the file of the voter lacks {error}") from None
