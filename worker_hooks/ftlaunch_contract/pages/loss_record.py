"""What a rank says of its losses in its page: the newest fault of each kind."""

from __future__ import annotations

import enum
from typing import NamedTuple

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.words import LOSSES

CALM = 10  # steps in a row without another that end an episode
NO_SPAN = (NONE, NONE)  # of samples: no sampler says
_WORDS = 8
_STEP, _VALUE, _BEGIN, _END, _LIMIT, _EPISODES, _NEWEST = range(7)  # words of a record


class LossFault(enum.IntEnum):
    """What is wrong with a loss; also which record of the page speaks of it."""

    NAN = 0
    SPIKE = 1


class Bad(NamedTuple):
    """What one rank says of its losses of one kind, in this attempt."""

    kind: LossFault
    step: int  # the first bad one; for the loss of the n-th step it is n
    value: float  # its loss
    begin: int  # samples consumed over all ranks before it; NONE where no sampler says
    end: int  # and after the last bad one of the row that was judged
    limit: float  # that it exceeded
    episodes: int  # so far
    newest: int  # the first step of the newest


class SpikeRule(NamedTuple):
    """What counts as a spike."""

    deviations: float  # above the median
    steps: int  # in a row


def parse_rule(text: str) -> SpikeRule | None:
    """The rule from the environment: "7 3", or nothing. Raises ValueError."""
    if not text:
        return None
    deviations, steps = text.split()
    return SpikeRule(float(deviations), int(steps))


def told(page: Page) -> list[Bad]:
    """What a rank's page says: a record of each kind of which there was any."""
    found = []
    for kind in LossFault:
        q, d, at = page.q, page.d, LOSSES + _WORDS * kind
        if step := q[at + _STEP]:
            numbers = q[at + _BEGIN], q[at + _END], d[at + _LIMIT], q[at + _EPISODES], q[at + _NEWEST]
            found.append(Bad(kind, step, d[at + _VALUE], *numbers))
    return found


def tell(page: Page, bad: Bad) -> None:
    """The first episode in full, of later ones their number and where the newest began."""
    q, d, at = page.q, page.d, LOSSES + _WORDS * bad.kind
    q[at + _NEWEST] = bad.newest
    q[at + _EPISODES] = bad.episodes
    if not q[at + _STEP]:
        d[at + _VALUE], d[at + _LIMIT] = bad.value, bad.limit
        q[at + _BEGIN], q[at + _END] = bad.begin, bad.end
        q[at + _STEP] = bad.step  # last: from here on the supervisor believes the rest
