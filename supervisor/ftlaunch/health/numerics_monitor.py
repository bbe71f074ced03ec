"""Looks at what the ranks say of their numbers, and keeps what follows from it: marks, and where to go back to."""

from __future__ import annotations

import json

from ftlaunch.health.numerics import Losses, NumericFault, Replicas, divergence
from ftlaunch.memory.pages import Pages
from ftlaunch.ranks.group import RankGroup
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch_contract.checkpoint import layout, skipped_samples
from ftlaunch_contract.pages import replica_record
from ftlaunch_contract.pages.loss_record import LossFault, told


class Soundness:
    """Of one job; `begin` starts anew with each attempt."""

    def __init__(self, spec: JobSpec, pages: Pages) -> None:
        self.spec, self.pages = spec, pages
        self._gang: RankGroup | None = None
        self._losses = Losses({})
        self._replicas: Replicas | None = None
        self._news: list[NumericFault] = []
        self._suspect: NumericFault | None = (
            None  # the earliest divergence; a resume takes one of the copies, right or not
        )
        self.rotten: int | None = None  # an attempt has ended because of it: from this step on nothing is saved of it
        self.back_before: int | None = None  # the next attempt goes back to a healthy checkpoint older than this

    def begin(self, gang: RankGroup) -> None:
        """An attempt starts."""
        self._gang = gang
        self._losses = Losses({LossFault.NAN: self.spec.numbers.on_nan, LossFault.SPIKE: self.spec.numbers.on_spike})
        self._replicas, self._news = None, []

    def look(self) -> list[NumericFault]:
        """What is new since the last look."""
        gang = self._gang
        if gang is None:
            return []
        pages = [(rank, page) for rank in gang.members if (page := gang.page(rank)) is not None]
        self._news += self._losses.look((rank, told(page)) for rank, page in pages)
        if self.spec.numbers.compare_replicas and len(pages) == self.spec.launch.nproc > 1:
            if self._replicas is None and all(page.resumed[1] >= 0 for _, page in pages):
                self._replicas = Replicas(self.spec.launch.nproc, pages[0][1].resumed[1])
            if self._replicas is not None:
                for found in self._replicas.look((rank, replica_record.told(page)) for rank, page in pages):
                    name = self._name(found.index)
                    self._note(divergence(found, name, self.spec.numbers.on_divergence, self.spec.launch.nproc))
        news, self._news = self._news, []
        return news

    def _note(self, finding: NumericFault) -> None:
        self._news.append(finding)
        if self._suspect is None or finding.before < self._suspect.before:
            self._suspect = finding

    def _name(self, index: int) -> str:
        """Of a part of the replicas, as rank 0 calls it."""
        try:
            names = json.loads((self.pages.directory / replica_record.NAMES).read_text())
            return str(names[index])
        except (OSError, ValueError, LookupError, TypeError):
            return f"part {index} of the replicas"

    def abnormal(self, step: int) -> str:
        """What is held against a step that is about to be saved, besides what its snapshots say; looks first."""
        self._news = self.look()
        suspect = self._suspect
        return suspect.sentence if suspect is not None and step >= suspect.before else ""

    # --- going back -----------------------------------------------------------------------------------------

    def end_attempt(self, finding: NumericFault) -> str:
        """It ends because of this. Where it is to go back: what becomes of the samples, as a part of a sentence."""
        self.rotten = finding.before
        if finding.act != "rollback":
            return ""
        self.back_before = finding.before
        if not self.spec.numbers.skip_bad_data or finding.kind == "divergence":
            return ""
        if finding.span is None:
            return "; its samples cannot be skipped (they are known only where one ftlaunch sampler is attached)"
        try:
            self.spec.checkpoint_dir.mkdir(parents=True, exist_ok=True)
            begin, end = skipped_samples.add(self.spec.checkpoint_dir, *finding.span)
        except (OSError, ValueError) as error:
            return f"; its samples cannot be skipped ({error})"
        return f", without samples {begin} to {end - 1}"

    def went_back(self, step: int) -> str:
        """It has been decided: later checkpoints are put aside; returns where they are. Raises OSError."""
        aside = layout.supersede(self.spec.checkpoint_dir, above=max(step, 0))
        self.back_before = self.rotten = None
        if self._suspect is not None and step < self._suspect.before:
            self._suspect = None
        return "" if aside is None else str(aside)
