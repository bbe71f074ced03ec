"""Looks at what the ranks report of their numbers, and keeps what follows from it: marks, and where to go back to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ftlaunch.health.numerics import Losses, NumericFault, Replicas, divergence
from ftlaunch.memory.pages import Pages
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch_contract.pages import replica_record
from ftlaunch_contract.pages.loss_record import LossFault, told
from ftlaunch_contract.pages.page import Page

RankPages = Callable[[], Sequence[tuple[int, Page]]]
"""The pages that speak of an attempt, with their ranks."""


class AttemptNumbers:
    """The numbers of one attempt."""

    def __init__(self, spec: JobSpec, ranks: int, name: Callable[[int], str]) -> None:
        """ranks: how many there are. name: what a part of the replicas is called."""
        self._spec, self._ranks, self._name = spec, ranks, name
        self._losses = Losses({LossFault.NAN: spec.numbers.on_nan, LossFault.SPIKE: spec.numbers.on_spike})
        self._replicas: Replicas | None = None

    def look(self, pages: Sequence[tuple[int, Page]]) -> list[NumericFault]:
        """What is new since the last look. pages: those that speak of the attempt."""
        return [*self._losses.look((rank, told(page)) for rank, page in pages), *self._divergences(pages)]

    def _divergences(self, pages: Sequence[tuple[int, Page]]) -> list[NumericFault]:
        ranks, numbers = self._ranks, self._spec.numbers
        if not numbers.compare_replicas or not len(pages) == ranks > 1:
            return []
        if self._replicas is None and all(page.resumed[1] >= 0 for _, page in pages):
            self._replicas = Replicas(ranks, pages[0][1].resumed[1])
        if self._replicas is None:
            return []
        found = self._replicas.look((rank, replica_record.told(page)) for rank, page in pages)
        return [divergence(one, self._name(one.index), numbers.on_divergence, ranks) for one in found]


class NumericsMonitor:
    """The numbers of a job over all its attempts."""

    def __init__(self, spec: JobSpec, pages: Pages) -> None:
        self.spec, self._pages = spec, pages
        self._attempt: AttemptNumbers | None = None
        self._of_attempt: RankPages = list
        self._news: list[NumericFault] = []  # found while a step was being saved: told at the next look
        # the earliest divergence: a resume takes one of the copies, whichever is right
        self._suspect: NumericFault | None = None
        self.rotten: int | None = None  # an attempt has ended because of it: from this step on nothing is saved of it
        self.back_before: int | None = None  # the next attempt goes back to a healthy checkpoint older than this
        self.skip: tuple[int, int] | None = None
        """the samples that the next attempt leaves out: the first, and the one after the last"""

    def begin_attempt(self, pages: RankPages) -> None:
        """Watch the ranks of a new attempt."""
        self._attempt, self._news = AttemptNumbers(self.spec, len(self._pages), self._name), []
        self._of_attempt = pages

    def look(self, pages: Sequence[tuple[int, Page]]) -> list[NumericFault]:
        """What is new since the last look. pages: those that speak of the attempt, with their ranks."""
        news, self._news = self._news, []
        return news + self._look(pages)

    def _look(self, pages: Sequence[tuple[int, Page]]) -> list[NumericFault]:
        found = self._attempt.look(pages) if self._attempt is not None else []
        for fault in found:
            if fault.kind == "divergence" and (self._suspect is None or fault.before < self._suspect.before):
                self._suspect = fault
        return found

    def _name(self, index: int) -> str:
        """A part of the replicas, as rank 0 calls it."""
        try:
            names = json.loads((self._pages.directory / replica_record.NAMES).read_text())
            return str(names[index])
        except (OSError, ValueError, LookupError, TypeError):
            return f"part {index} of the replicas"

    def abnormal(self, step: int) -> str:
        """What is held against a step that is about to be saved, besides what its snapshots say; looks first."""
        self._news += self._look(self._of_attempt())
        suspect = self._suspect
        return suspect.sentence if suspect is not None and step >= suspect.before else ""

    # --- going back -------------------------------------------------------------------------------------------

    def end_attempt(self, fault: NumericFault) -> str:
        """The attempt ends because of this. Where it goes back: what becomes of the samples, a part of a sentence."""
        self.rotten, self.skip = fault.before, None
        if fault.act != "rollback":
            return ""
        self.back_before = fault.before
        if not self.spec.numbers.skip_bad_data or fault.kind == "divergence":
            return ""
        if fault.span is None:
            return "; its samples cannot be skipped (they are known only where one ftlaunch sampler is attached)"
        self.skip = fault.span
        return ", without the samples of the bad steps"

    def end_inexact(self, step: int) -> None:
        """The attempt ends because `step` was made again with another result: nothing is saved from that step on."""
        self.rotten = step

    def went_back(self, step: int) -> None:
        """Storage is as it was at `step`."""
        self.back_before = self.rotten = self.skip = None
        if self._suspect is not None and step < self._suspect.before:
            self._suspect = None
