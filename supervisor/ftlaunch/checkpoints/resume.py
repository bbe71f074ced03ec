"""Where an attempt takes its state from: performs what `recovery` decides; the saver says what storage has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.checkpoints.save_scheduler import Answer, SaveScheduler
from ftlaunch.health.numerics_monitor import NumericsMonitor
from ftlaunch.memory import recovery_plan
from ftlaunch.memory.pages import Pages
from ftlaunch.memory.proving_step import choose_proving_step
from ftlaunch.memory.recovery_plan import NONE, Kept, RecoveryPlan
from ftlaunch.memory.restore_map import restore_map
from ftlaunch.reporting.events.base import JobEvent, Note
from ftlaunch.reporting.events.checkpoints import CheckpointRejected, Loaded, of_moves
from ftlaunch.reporting.events.copies import FetchedFromPeers, FetchPlanned, RestorePlanned
from ftlaunch.reporting.events.incidents import RolledBack
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileSystemSilent, FileThread
from ftlaunch_contract.checkpoint import initial, layout
from ftlaunch_contract.checkpoint.initial import InitialCheckpoint
from ftlaunch_contract.protocol import Resume

# No step before this one is made again for a proof alone: in their first steps libraries lay out what they need later
# (DDP its buckets), and a resume in the middle of that is less exact than a later one.
_FIRST_PROVING_STEP = 2


@dataclass(frozen=True)
class Inherited:
    """What earlier runs, or the user, have left to begin with."""

    load: InitialCheckpoint | None
    """the checkpoint that a job without anything of its own begins with"""
    unfinished: Sequence[int]
    """steps of checkpoints that were never committed"""


class PeerMemory(Protocol):
    """What the memory of other nodes holds for ranks that have lost theirs."""

    ranks_each: int
    """of a node"""

    def kept(self) -> Sequence[Kept]:
        """Snapshots that other nodes than a rank's own have."""

    def place_of_keeper(self, number: int) -> int:
        """Return the place of the node that is `node` of a Kept; NONE: it has none, or is gone."""

    def fetch(
        self,
        plan: RecoveryPlan,
        planned: Callable[[list[dict[str, Any]]], None],
        done: Callable[[str, list[dict[str, Any]]], None],
    ) -> None:
        """Bring what a plan takes from other nodes.

        Args:
            plan: which ranks lack which step.
            planned: called before the nodes have read it, with a row for each node that fetches: what comes from where.
            done: called with why it could not be brought, or nothing; and a row for each node that has fetched.
        """

    def save_lost(self, newer_than: int, done: Callable[[], None]) -> None:
        """Have the newest step in memory that is newer than a step made whole, for saving, where nodes are lost.

        done: called once it is, or cannot be.
        """


class ResumeDecision:
    """Decides at once where memory has the state; else when the saver has verified what storage has. Never waits."""

    def __init__(
        self,
        spec: JobSpec,
        found: Inherited,
        pages: Pages,
        saving: SaveScheduler,
        numbers: NumericsMonitor,
        tell: Callable[[JobEvent], None],
        cannot: Callable[[str], None],
        peers: PeerMemory | None,
        files: FileThread,
    ) -> None:
        """tell: takes events. cannot: ends the job, with this sentence. peers: None on one node.

        files: touches the checkpoint directory.
        """
        self.spec, self._found, self.pages = spec, found, pages
        self.saving, self.numbers, self._tell = saving, numbers, tell
        self._cannot, self._peers, self._files = cannot, peers, files
        self._asked = False  # the saver has been, and its answer is awaited
        self._listed: list[int] | None = None  # the steps that storage had when it was listed last
        self._fetching: RecoveryPlan | None = None  # what it takes from other nodes is to be brought

    def decide(self, *, first: bool) -> tuple[Resume, int]:
        """For the pages of an attempt; UNDECIDED while the saver verifies what storage has. Raises OSError."""
        self._asked, self._fetching = False, None
        if self.numbers.back_before is not None:
            self.saving.hurry()  # a save under way holds up all ranks
            self._write_map(Resume.UNDECIDED, RecoveryPlan(Resume.STORAGE, NONE, {}))
            return self._ask(NONE, healthy_before=self.numbers.back_before)  # and nothing that is in memory
        stored = self._stored()
        plan = self._plan(stored, [] if self._peers is None else self._peers.kept())
        if plan.kind is Resume.PEER:
            self._fetching = plan
            self._write_map(plan.kind, plan)
            return Resume.UNDECIDED, plan.step
        if plan.kind is Resume.MEMORY:
            proving = replace(plan, step=self._proving_step(plan.step, stored))
            self._write_map(proving.kind, proving)
            return proving.kind, proving.step
        return self._without_peers(plan, first=first)

    def _proving_step(self, newest: int, stored: Sequence[int]) -> int:
        """Return the step in memory to resume at: one snapshot further back where that buys a proof of the resume."""
        every = self.pages.slots()
        return choose_proving_step(
            newest,
            {rank: every[rank] for rank in range(len(self.pages))},
            self.pages.evidence(),
            mode=self.spec.saving.verify_resume,
            step_seconds=self.pages.step_seconds(),
            # a step that is being saved must be the one that the attempt goes on from: the end of a training is awaited
            oldest=max((_FIRST_PROVING_STEP, self.pages.newest_held(), *stored)),
        )

    def _plan(self, stored: Sequence[int], kept: Sequence[Kept] = ()) -> RecoveryPlan:
        each = 0 if self._peers is None else self._peers.ranks_each
        return recovery_plan.of_snapshots(self.pages.slots(), len(self.pages), stored, each, kept)

    def _without_peers(self, plan: RecoveryPlan, *, first: bool) -> tuple[Resume, int]:
        directory = self.spec.checkpoint_dir
        refused = plan.kind is Resume.FRESH and self._files.call(lambda: layout.refused_before(directory))
        load = self._found.load if plan.kind is Resume.FRESH and not refused else None
        if plan.kind is Resume.STORAGE or refused:
            self._write_map(Resume.UNDECIDED, plan if not refused else replace(plan, step=NONE))
            return self._ask(self.pages.newest_common())  # the next rung, should storage have nothing usable
        if load is not None:
            self._write_map(Resume.UNDECIDED, replace(plan, step=NONE))
            return self._ask(self.pages.newest_common(), load=load.path)
        if plan.kind is Resume.FRESH and first and self._found.unfinished:
            self._tell(Note("no checkpoint was ever finished: starting from the beginning"))
        if not first:
            self._write_map(plan.kind, plan)
        return plan.kind, plan.step

    def _write_map(self, kind: Resume, plan: RecoveryPlan) -> None:
        """Tell where each rank is to take its state from, before any of them does."""
        peers = self._peers
        self._tell(
            RestorePlanned(
                restore_map(
                    kind,
                    plan,
                    ranks=len(self.pages),
                    ranks_each=0 if peers is None else peers.ranks_each,
                    place_of=lambda node: NONE if peers is None else peers.place_of_keeper(node),
                )
            )
        )

    # --- from other nodes -------------------------------------------------------------------------------------

    def begun(self) -> None:
        """The ranks are started, and wait: have brought what other nodes keep for them."""
        if (plan := self._fetching) is not None and self._peers is not None:
            self._peers.fetch(
                plan,
                planned=lambda nodes: self._tell(FetchPlanned(plan.step, nodes)),
                done=lambda why, brought: self._fetched(plan, why, brought),
            )

    def _fetched(self, plan: RecoveryPlan, why: str, brought: list[dict[str, Any]]) -> None:
        if self._fetching is not plan:
            return  # of an attempt that is over
        self._fetching = None
        self._tell(FetchedFromPeers(plan.step, why, brought))
        if not why:
            self.pages.decide(Resume.PEER, plan.step, self.saving.first_due(plan.step))
            return
        try:
            kind, step = self._without_peers(self._plan(self._stored()), first=False)
        except OSError as error:
            self._cannot(f"cannot resume: {error.filename or self.spec.checkpoint_dir}: {error.strerror}")
            return
        if kind is not Resume.UNDECIDED:
            self.pages.decide(kind, step, self.saving.first_due(max(step, 0)))

    # --- from storage -----------------------------------------------------------------------------------------

    def _stored(self) -> list[int]:
        """Steps on storage. While the saver is at work there, storage is not asked: it may not answer.

        Raises OSError, also where storage does not answer and has never been listed: it may hold a newer step than
        memory, saved by a run on another machine.
        """
        if self.saving.busy:
            return self._committed()
        try:
            return self._list()
        except FileSystemSilent:
            if self._listed is None:
                raise
            return sorted({*self._listed, *self._committed()})

    def _list(self) -> list[int]:
        directory = self.spec.checkpoint_dir
        self._listed = self._files.call(lambda: [step for step, _ in layout.list_iterations(directory)])
        return self._listed

    def _committed(self) -> list[int]:
        return [] if self.saving.committed == NONE else [self.saving.committed]

    def _ask(self, step: int, *, load: Path | None = None, healthy_before: int | None = None) -> tuple[Resume, int]:
        self._asked = True
        self.saving.find(load, healthy_before)
        return Resume.UNDECIDED, step

    def heed(self, answer: Answer) -> None:
        """The saver's answer to what `decide` has asked: what verified, and what was refused."""
        if not self._asked:
            return
        self._asked = False
        rejected, verified = answer.get("rejected", []), answer["step"]
        if "error" in answer:
            self._unverified(answer)
        elif "load" in answer:
            self._reject(rejected, verified)
            self._begin_with(verified)
        elif "healthy_before" in answer:
            self._reject(rejected, verified)
            self._go_back(verified, answer["healthy_before"])
        else:
            self._take_up(verified, rejected)

    def _unverified(self, answer: Answer) -> None:
        """The saver could not say what is usable: an older step that memory has is, where any step will do."""
        told = f"what is in {answer.get('load', self.spec.checkpoint_dir)} could not be verified: {answer['error']}"
        plan = self._plan([])
        if plan.kind is Resume.FRESH or "load" in answer or "healthy_before" in answer:
            self._cannot(f"cannot resume: {told}; nothing there was changed, and the same command tries it again")
            return
        self._tell(Note(f"{told}; going on from the older step {plan.step}, which memory has"))
        self._write_map(plan.kind, plan)
        self.pages.decide(plan.kind, plan.step, self.saving.first_due(plan.step))

    def _reject(self, rejected: Sequence[dict[str, Any]], taken: int) -> None:
        for entry in rejected:
            self._tell(CheckpointRejected(entry, taken))

    def _take_up(self, verified: int, rejected: Sequence[dict[str, Any]]) -> None:
        """The newest checkpoint that verified, or what memory has."""
        stored = [] if verified == NONE else [verified]
        plan = self._plan(stored)
        found = plan.kind is not Resume.FRESH
        self._reject(rejected, plan.step if found else NONE)
        if found:
            self.saving.committed = verified
            self._write_map(plan.kind, plan)
            self.pages.decide(plan.kind, plan.step, self.saving.first_due(plan.step))
            return
        self._cannot(
            f"cannot resume: no checkpoint in {self.spec.checkpoint_dir} is usable (see its quarantine/); "
            "--fresh starts over"
        )

    def _go_back(self, step: int, before: int) -> None:
        """Take up the healthy checkpoint of `step`; without any older than `before`, begin where the job began."""
        try:
            older = [found for found in self._list() if found < before]
        except OSError as error:
            self._cannot(f"cannot go back: {error.filename or self.spec.checkpoint_dir}: {error.strerror}")
            return
        if step == NONE and older:
            self._cannot(
                f"cannot go back: of the checkpoints older than step {before} in {self.spec.checkpoint_dir} none is"
                " both usable and marked healthy (`ftctl checkpoints` shows the marks)"
            )
            return
        self.saving.go_back(step, self.numbers.skip)

    def went_back(self, answer: Answer, *, goes_on: bool) -> None:
        """The saver has put later checkpoints aside, or could not. goes_on: the ranks wait for that."""
        if "error" in answer:
            if goes_on:
                self._cannot(f"cannot put later checkpoints aside: {answer['error']}")
            return
        step = answer["step"]
        for event in of_moves(Path(answer["aside"]), answer.get("moved", ()), "rolled back"):
            self._tell(event)
        self._tell(RolledBack(step, answer["aside"], answer["skipped"], answer["not_skipped"]))
        self.numbers.went_back(step)
        self.saving.went_back(step)
        self._asked = False  # a later attempt has asked where to go back to: that is known now
        self.pages.withdraw_snapshots()  # also of the step that the saver was reading as the attempt ended
        if goes_on:
            self._begin_at(step)

    def _begin_at(self, step: int) -> None:
        try:
            kind, found = (Resume.STORAGE, step) if step != NONE else self.decide(first=False)
        except OSError as error:
            self._cannot(f"cannot go back: {error.filename or self.spec.checkpoint_dir}: {error.strerror}")
            return
        if kind is not Resume.UNDECIDED:
            self.pages.decide(kind, found, self.saving.first_due(found))

    def _begin_with(self, step: int) -> None:
        """The checkpoint to begin with is verified, or not."""
        load = self._found.load
        assert load is not None
        if step == NONE:
            self._cannot(initial.none_usable(load))
            return
        self._tell(Loaded(load, step))
        kind = Resume.WEIGHTS if load.weights_only else Resume.LOADED
        self.pages.decide(kind, step, self.saving.first_due(0 if load.weights_only else step))
