"""Reads what the ranks report of their numbers, and keeps what follows for saving and for going back.

`engine/watch.py` asks for news in each turn of the event loop. The checkpoints' code asks which steps are abnormal, up
to where a job goes back, and which samples the next attempt leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ftlaunch.health.numerics import Losses, NumericFault, Replicas, divergence
from ftlaunch.memory.pages import Pages
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch_contract.pages import replica_record
from ftlaunch_contract.pages.loss_record import LossFault, read_losses
from ftlaunch_contract.pages.page import Page

RankPages = Callable[[], Sequence[tuple[int, Page]]]
"""Returns the pages that were written in an attempt, with their ranks."""


class AttemptNumbers:
    """Watches the numbers of one attempt."""

    def __init__(self, spec: JobSpec, ranks: int, name: Callable[[int], str]) -> None:
        """Begin with an attempt.

        Args:
            spec: the job.
            ranks: number of ranks of the job.
            name: returns the name of a part of the replicas from its index.
        """
        self._spec = spec
        self._ranks = ranks
        self._name = name
        self._losses = Losses({LossFault.NAN: spec.numbers.on_nan, LossFault.SPIKE: spec.numbers.on_spike})
        self._replicas: Replicas | None = None

    def observe(self, pages: Sequence[tuple[int, Page]]) -> list[NumericFault]:
        """Return what is new since the last call.

        Args:
            pages: the pages that were written in the attempt, with their ranks.
        """
        bad_losses = self._losses.observe((rank, read_losses(page)) for rank, page in pages)
        return [*bad_losses, *self._divergences(pages)]

    def _divergences(self, pages: Sequence[tuple[int, Page]]) -> list[NumericFault]:
        """Return the replicas that have begun to differ. They are compared once all ranks have resumed."""
        ranks = self._ranks
        numbers = self._spec.numbers
        if not numbers.compare_replicas or not len(pages) == ranks > 1:
            return []
        if self._replicas is None and all(page.resumed[1] >= 0 for _, page in pages):
            self._replicas = Replicas(ranks, pages[0][1].resumed[1])
        if self._replicas is None:
            return []
        found = self._replicas.observe((rank, replica_record.read_digests(page)) for rank, page in pages)
        return [
            divergence(
                found=difference,
                name=self._name(difference.index),
                act=numbers.on_divergence,
                ranks=ranks,
            )
            for difference in found
        ]


class NumericsMonitor:
    """Watches the numbers of a job over all its attempts."""

    def __init__(self, spec: JobSpec, pages: Pages) -> None:
        """Watch nothing until an attempt begins.

        Args:
            spec: the job.
            pages: pages of all ranks.
        """
        self.spec = spec
        self._pages = pages
        self._attempt: AttemptNumbers | None = None
        self._of_attempt: RankPages = list
        self._news: list[NumericFault] = []  # found while a step was being saved; the next `observe` returns them
        # The earliest divergence. A resume may take any of the copies, the right one or a wrong one.
        self._suspect: NumericFault | None = None
        self.rotten: int | None = None
        """step from which on nothing of the ended attempt is saved; None: everything may be saved"""
        self.back_before: int | None = None
        """the next attempt goes back to a healthy checkpoint whose step is less; None: it does not go back"""
        self.skip: tuple[int, int] | None = None
        """the samples that the next attempt leaves out: the first, and the one after the last; None: no samples"""

    def begin_attempt(self, pages: RankPages) -> None:
        """Watch the ranks of a new attempt.

        Args:
            pages: returns the pages that were written in the attempt.
        """
        self._attempt = AttemptNumbers(self.spec, len(self._pages), self._name)
        self._news = []
        self._of_attempt = pages

    def observe(self, pages: Sequence[tuple[int, Page]]) -> list[NumericFault]:
        """Return what is new since the last call.

        Args:
            pages: the pages that were written in the attempt, with their ranks.
        """
        news = self._news
        self._news = []
        return news + self._observe(pages)

    def _observe(self, pages: Sequence[tuple[int, Page]]) -> list[NumericFault]:
        """Return what is new in the pages, and remember the earliest divergence."""
        found = self._attempt.observe(pages) if self._attempt is not None else []
        for fault in found:
            if fault.kind == "divergence" and (self._suspect is None or fault.before < self._suspect.before):
                self._suspect = fault
        return found

    def _name(self, index: int) -> str:
        """Return the name that rank 0 has given to a part of the replicas."""
        try:
            names = json.loads((self._pages.directory / replica_record.NAMES).read_text())
            return str(names[index])
        except (OSError, ValueError, LookupError, TypeError):
            return f"part {index} of the replicas"

    def abnormal(self, step: int) -> str:
        """Return why a step that is about to be saved is abnormal; empty if nothing is held against the step.

        The newest reports of the ranks are read first. What the step's snapshots say themselves is not repeated.
        """
        self._news += self._observe(self._of_attempt())
        suspect = self._suspect
        return suspect.sentence if suspect is not None and step >= suspect.before else ""

    # --- going back -------------------------------------------------------------------------------------------

    def end_attempt(self, fault: NumericFault) -> str:
        """Record that the attempt ends because of a fault, and where the next attempt goes back to.

        Returns:
            What becomes of the samples, as a part of a sentence; empty if there is nothing to say.
        """
        self.rotten = fault.before
        self.skip = None
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
        """Record that the attempt ends because `step` was made again with another result.

        Nothing is saved from that step on.
        """
        self.rotten = step

    def went_back(self, step: int) -> None:
        """Record that the job has gone back to the checkpoint of `step`."""
        self.back_before = None
        self.rotten = None
        self.skip = None
        if self._suspect is not None and step < self._suspect.before:
            self._suspect = None
