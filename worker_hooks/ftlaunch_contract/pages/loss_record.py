"""Faults of a rank's losses, in its page: one record for each kind of fault."""

from __future__ import annotations

import enum
from typing import NamedTuple

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.words import LOSSES

CALM = 10  # good steps in a row that end an episode
NO_SPAN = (NONE, NONE)  # of samples, where no sampler counts them
_WORDS = 8
_STEP, _VALUE, _BEGIN, _END, _LIMIT, _EPISODES, _NEWEST = range(7)  # words of a record


class LossFault(enum.IntEnum):
    """What is wrong with a loss; also the number of its record in the page."""

    NAN = 0
    SPIKE = 1


_RECORDS = tuple((kind, int(LOSSES) + _WORDS * kind) for kind in LossFault)  # each kind, and its first word


class Bad(NamedTuple):
    """One rank's bad losses of one kind, in this attempt."""

    kind: LossFault
    step: int  # the first bad step; n for the loss of the n-th step
    value: float  # the loss of that step
    begin: int  # samples consumed over all ranks before that step; NONE where no sampler counts them
    end: int  # samples consumed after the last bad step that was judged with it
    limit: float  # the limit that the loss exceeded
    episodes: int  # number of episodes so far
    newest: int  # the first step of the newest episode


class SpikeRule(NamedTuple):
    """What counts as a spike."""

    deviations: float  # so many above the median
    steps: int  # so many bad steps in a row


def parse_rule(text: str) -> SpikeRule | None:
    """The rule from the environment: "7 3", or nothing. Raises ValueError."""
    if not text:
        return None
    deviations, steps = text.split()
    return SpikeRule(float(deviations), int(steps))


def told(page: Page) -> list[Bad]:
    """The records in a rank's page of the kinds that have occurred."""
    found, q = [], page.q
    for kind, at in _RECORDS:
        if step := q[at + _STEP]:
            d = page.d
            numbers = q[at + _BEGIN], q[at + _END], d[at + _LIMIT], q[at + _EPISODES], q[at + _NEWEST]
            found.append(Bad(kind, step, d[at + _VALUE], *numbers))
    return found


def tell(page: Page, bad: Bad) -> None:
    """Write a record: the first episode in full; of later episodes their number and where the newest began."""
    q, d, at = page.q, page.d, LOSSES + _WORDS * bad.kind
    q[at + _NEWEST] = bad.newest
    q[at + _EPISODES] = bad.episodes
    if not q[at + _STEP]:
        d[at + _VALUE], d[at + _LIMIT] = bad.value, bad.limit
        q[at + _BEGIN], q[at + _END] = bad.begin, bad.end
        q[at + _STEP] = bad.step  # last: from here on the supervisor trusts the record
