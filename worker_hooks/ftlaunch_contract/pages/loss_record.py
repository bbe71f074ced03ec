"""Records of a rank's bad losses in its page, one record for each kind of fault.

The rank writes with `write_losses`; the supervisor reads with `read_losses` while the rank runs.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.words import LOSSES

CALM = 10  # number of good steps in a row that end an episode of bad ones
NO_SPAN = (NONE, NONE)  # begin and end in samples, where no sampler counts samples
_WORDS = 8
_STEP, _VALUE, _BEGIN, _END, _LIMIT, _EPISODES, _NEWEST = range(7)  # words of a record


class LossFault(enum.IntEnum):
    """What is wrong with a loss; the value is the number of the fault's record in the page."""

    NAN = 0
    SPIKE = 1


_RECORDS = tuple((kind, int(LOSSES) + _WORDS * kind) for kind in LossFault)  # each kind, and its record's first word


class Bad(NamedTuple):
    """The bad losses of one rank and of one kind in this attempt."""

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

    deviations: float  # a loss is bad above the median plus this many deviations
    steps: int  # number of bad steps in a row that make a spike


def parse_rule(text: str) -> SpikeRule | None:
    """Read the value of ENV_SPIKE, "DEVIATIONS STEPS"; None for an empty text. Raises ValueError."""
    if not text:
        return None
    deviations, steps = text.split()
    return SpikeRule(float(deviations), int(steps))


def read_losses(page: Page) -> list[Bad]:
    """Return the records in a rank's page, for the kinds of fault that have occurred."""
    found = []
    q = page.q
    for kind, at in _RECORDS:
        if step := q[at + _STEP]:
            d = page.d
            bad = Bad(
                kind=kind,
                step=step,
                value=d[at + _VALUE],
                begin=q[at + _BEGIN],
                end=q[at + _END],
                limit=d[at + _LIMIT],
                episodes=q[at + _EPISODES],
                newest=q[at + _NEWEST],
            )
            found.append(bad)
    return found


def write_losses(page: Page, bad: Bad) -> None:
    """Write the first episode in full; for later episodes update only their number and the newest one's beginning."""
    q = page.q
    d = page.d
    at = LOSSES + _WORDS * bad.kind
    q[at + _NEWEST] = bad.newest
    q[at + _EPISODES] = bad.episodes
    if not q[at + _STEP]:
        d[at + _VALUE] = bad.value
        d[at + _LIMIT] = bad.limit
        q[at + _BEGIN] = bad.begin
        q[at + _END] = bad.end
        q[at + _STEP] = bad.step  # last: from here on the supervisor trusts the record
