"""Decides where the ranks of an attempt take their state from: memory, other nodes, storage, or nowhere.

The choice among the snapshots is made in `memory/recovery_plan.py`, which is pure. This module asks the saver which
checkpoints verify, has snapshots fetched from other nodes, and writes the decision into the pages, where the ranks wait
for it. `engine/supervisor.py` calls everything here in the main thread; nothing here waits.
"""

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

# No earlier step is repeated just to prove a resume: in their first steps libraries lay out what they need later, such
# as the buckets of DDP, and a resume in between is less exact than a later one.
_FIRST_PROVING_STEP = 2


@dataclass(frozen=True)
class Inherited:
    """What the first attempt finds on storage beside the job's own checkpoints."""

    load: InitialCheckpoint | None
    """the checkpoint of another job with which a job without a state of its own begins; None: there is none"""
    unfinished: Sequence[int]
    """steps of the job's checkpoints that were never committed"""
    damaged_store: str = ""
    """the address of the job's checkpoint store if all steps there are damaged, for people"""


class PeerMemory(Protocol):
    """The snapshots that other nodes keep for ranks that have lost their own. The head of several nodes has one."""

    ranks_each: int
    """number of ranks on each node"""

    def kept(self) -> Sequence[Kept]:
        """Return the snapshots that are kept on another node than the rank's own."""

    def place_of_keeper(self, number: int) -> int:
        """Return the place of the node with this number, which is `node` of a Kept; NONE if the node has no place."""

    def fetch(
        self,
        plan: RecoveryPlan,
        planned: Callable[[list[dict[str, Any]]], None],
        done: Callable[[str, list[dict[str, Any]]], None],
    ) -> None:
        """Have the nodes fetch the snapshots that a plan takes from other nodes.

        Args:
            plan: which ranks lack which step.
            planned: called before the nodes begin, with a row for each node that fetches: what comes from where.
            done: called with the reason of a failure, or "", and with a row for each node that has fetched.
        """

    def save_lost(self, newer_than: int, done: Callable[[], None]) -> None:
        """Have the snapshots of lost nodes' ranks fetched, so that memory holds the newest step of all ranks.

        Args:
            newer_than: only a step after this one is of interest.
            done: called once the snapshots are here, or cannot be fetched.
        """


class ResumeDecision:
    """Decides where each attempt of a job resumes, and has the decision carried out.

    The decision is immediate if memory has the state; else it follows once other nodes have sent their snapshots, or
    the saver has verified the checkpoints. The ranks wait meanwhile. No method waits.
    """

    def __init__(
        self,
        spec: JobSpec,
        found: Inherited,
        pages: Pages,
        saving: SaveScheduler,
        numbers: NumericsMonitor,
        report: Callable[[JobEvent], None],
        cannot: Callable[[str], None],
        peers: PeerMemory | None,
        files: FileThread,
    ) -> None:
        """Make the decision's state for a job.

        Args:
            spec: the job.
            found: what the first attempt finds on storage.
            pages: the pages of all ranks.
            saving: asks the saver.
            numbers: knows whether the job goes back to a healthy checkpoint.
            report: reports an event.
            cannot: ends the job; called with a sentence for the user.
            peers: the snapshots that other nodes keep; None on one node.
            files: the thread that touches the checkpoint directory.
        """
        self.spec = spec
        self._found = found
        self.pages = pages
        self.saving = saving
        self.numbers = numbers
        self._report = report
        self._cannot = cannot
        self._peers = peers
        self._files = files
        self._is_answer_awaited = False  # of the saver
        self._listed: list[int] | None = None  # the steps on storage when storage was last listed
        self._fetching: RecoveryPlan | None = None  # the plan whose snapshots are to come from other nodes

    def decide(self, *, first: bool) -> tuple[Resume, int]:
        """Decide where the next attempt takes its state from.

        Args:
            first: whether this is the job's first attempt.

        Returns:
            What to write into the pages of the ranks: the kind of the resume and the step. UNDECIDED: the decision
            follows later, on the pages.

        Raises:
            OSError: storage cannot be read, or does not answer and was never listed.
        """
        self._is_answer_awaited = False
        self._fetching = None
        if self.numbers.back_before is not None:
            self.saving.hurry()  # a save under way holds up all ranks
            self._write_map(Resume.UNDECIDED, RecoveryPlan(Resume.STORAGE, NONE, {}))
            # NONE: snapshots in memory do not count when the job goes back
            return self._ask(NONE, healthy_before=self.numbers.back_before)
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
        """Return the step in memory to resume at: an older snapshot if the repeated steps can prove the resume."""
        slots = self.pages.slots()
        return choose_proving_step(
            newest,
            {rank: slots[rank] for rank in range(len(self.pages))},
            self.pages.evidence(),
            mode=self.spec.saving.verify_resume,
            step_seconds=self.pages.step_seconds(),
            # A step that is being saved must not be repeated: the end of a training waits for this save.
            oldest=max((_FIRST_PROVING_STEP, self.pages.newest_held(), *stored)),
        )

    def _plan(self, stored: Sequence[int], kept: Sequence[Kept] = ()) -> RecoveryPlan:
        """Return the best plan for memory, storage (steps `stored`), and the snapshots `kept` by other nodes."""
        ranks_each = 0 if self._peers is None else self._peers.ranks_each
        return recovery_plan.of_snapshots(
            slots=self.pages.slots(), ranks=len(self.pages), stored=stored, ranks_each=ranks_each, kept=kept
        )

    def _without_peers(self, plan: RecoveryPlan, *, first: bool) -> tuple[Resume, int]:
        """Decide as `decide` does, for a plan that takes nothing from memory. Raises OSError."""
        directory = self.spec.checkpoint_dir
        refused = plan.kind is Resume.FRESH and (
            bool(self._found.damaged_store) or self._files.call(lambda: layout.refused_before(directory))
        )
        load = self._found.load if plan.kind is Resume.FRESH and not refused else None
        if plan.kind is Resume.STORAGE or refused:
            self._write_map(Resume.UNDECIDED, plan if not refused else replace(plan, step=NONE))
            return self._ask(self.pages.newest_common())  # memory is next if no checkpoint is usable
        if load is not None:
            self._write_map(Resume.UNDECIDED, replace(plan, step=NONE))
            return self._ask(self.pages.newest_common(), load=load.path)
        if plan.kind is Resume.FRESH and first and self._found.unfinished:
            self._report(Note("no checkpoint was ever finished: starting from the beginning"))
        if not first:
            self._write_map(plan.kind, plan)
        return plan.kind, plan.step

    def _write_map(self, kind: Resume, plan: RecoveryPlan) -> None:
        """Report from where each rank takes its state, before any rank does so."""
        peers = self._peers
        self._report(
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
        """Begin to fetch what the plan takes from other nodes. Called once the ranks are started and wait."""
        if (plan := self._fetching) is not None and self._peers is not None:
            self._peers.fetch(
                plan,
                planned=lambda nodes: self._report(FetchPlanned(plan.step, nodes)),
                done=lambda why, rows: self._fetched(plan, why, rows),
            )

    def _fetched(self, plan: RecoveryPlan, why: str, rows: list[dict[str, Any]]) -> None:
        """Let the ranks resume from the fetched snapshots; if the fetch has failed, decide without other nodes.

        Args:
            plan: what was fetched.
            why: why the fetch has failed; "": it has not.
            rows: for each node that has fetched, what came from where.
        """
        if self._fetching is not plan:
            return  # the attempt that this was fetched for is over
        self._fetching = None
        self._report(FetchedFromPeers(plan.step, why, rows))
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
        """Return the steps on storage.

        While the saver works on storage, which may hang, storage is not listed; the newest committed step must do.

        Raises:
            OSError: storage cannot be read. Or storage does not answer and was never listed, so that a run on another
                machine may have saved a newer step than memory has.
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
        listed = self._files.call(lambda: [step for step, _ in layout.list_iterations(directory)])
        stored = self.saving.link.stored
        self._listed = listed if stored == NONE else sorted({*listed, stored})
        return self._listed

    def _committed(self) -> list[int]:
        return [] if self.saving.committed == NONE else [self.saving.committed]

    def _ask(self, step: int, *, load: Path | None = None, healthy_before: int | None = None) -> tuple[Resume, int]:
        """Ask the saver which checkpoint verifies; return what to write into the pages meanwhile."""
        self._is_answer_awaited = True
        self.saving.find(load, healthy_before)
        return Resume.UNDECIDED, step

    def handle_answer(self, answer: Answer) -> None:
        """Handle the saver's answer to a question of `decide`: which checkpoint verified, and which were refused."""
        if not self._is_answer_awaited:
            return
        self._is_answer_awaited = False
        rejected = answer.get("rejected", [])
        verified = answer["step"]
        if "error" in answer:
            self._resume_unverified(answer)
        elif "load" in answer:
            self._report_rejected(rejected, verified)
            self._begin_with(verified)
        elif "healthy_before" in answer:
            self._report_rejected(rejected, verified)
            self._go_back(verified, answer["healthy_before"])
        else:
            self._resume_from(verified, rejected)

    def _resume_unverified(self, answer: Answer) -> None:
        """Resume from an older step in memory because the saver could not verify storage; end the job if none will do.

        An older step does not do if the job is to begin with another job's checkpoint, or to go back to a healthy one.
        """
        place = answer.get("load", self.spec.checkpoint_dir)
        if "load" in answer and self.spec.saving.load_address is not None:
            address = self.spec.saving.load_address
            self._cannot(f"cannot begin with {address}: {answer['error']}; the same command tries it again")
            return
        problem = f"what is in {place} could not be verified: {answer['error']}"
        plan = self._plan([])
        if plan.kind is Resume.FRESH or "load" in answer or "healthy_before" in answer:
            self._cannot(f"cannot resume: {problem}; nothing there was changed, and the same command tries it again")
            return
        self._report(Note(f"{problem}; going on from the older step {plan.step}, which memory has"))
        self._write_map(plan.kind, plan)
        self.pages.decide(plan.kind, plan.step, self.saving.first_due(plan.step))

    def _report_rejected(self, rejected: Sequence[dict[str, Any]], chosen: int) -> None:
        for entry in rejected:
            self._report(CheckpointRejected(entry, chosen))

    def _resume_from(self, verified: int, rejected: Sequence[dict[str, Any]]) -> None:
        """Resume from the newest checkpoint that verified, or from memory; end the job if there is neither.

        Args:
            verified: the step of the checkpoint, or NONE.
            rejected: the checkpoints that did not verify.
        """
        stored = [] if verified == NONE else [verified]
        plan = self._plan(stored)
        is_usable = plan.kind is not Resume.FRESH
        self._report_rejected(rejected, plan.step if is_usable else NONE)
        if is_usable:
            self.saving.committed = verified
            self._write_map(plan.kind, plan)
            self.pages.decide(plan.kind, plan.step, self.saving.first_due(plan.step))
            return
        if self._found.damaged_store:
            self._cannot(
                f"cannot resume: all checkpoints in {self._found.damaged_store} are damaged, and this machine has none;"
                " --fresh starts over (their files stay there)"
            )
            return
        self._cannot(
            f"cannot resume: no checkpoint in {self.spec.checkpoint_dir} is usable (see its quarantine/); "
            "--fresh starts over"
        )

    def _go_back(self, step: int, before: int) -> None:
        """Go back to a healthy checkpoint, or to the job's beginning if storage has no checkpoint before `before`.

        Args:
            step: the newest healthy checkpoint that verified, or NONE.
            before: the first step with wrong numbers.
        """
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
        """Take the saver's answer that later checkpoints are put aside, or could not be.

        Args:
            answer: the answer to a "go_back".
            goes_on: whether ranks wait for this answer.
        """
        if "error" in answer:
            if goes_on:
                self._cannot(f"cannot put later checkpoints aside: {answer['error']}")
            return
        step = answer["step"]
        for event in of_moves(Path(answer["aside"]), answer.get("moved", ()), "rolled back"):
            self._report(event)
        self._report(
            RolledBack(step=step, aside=answer["aside"], skipped=answer["skipped"], not_skipped=answer["not_skipped"])
        )
        self.numbers.went_back(step)
        self.saving.went_back(step)
        self._is_answer_awaited = False  # a later attempt may have asked where to go back to, which is known now
        self.pages.withdraw_snapshots()  # even of the step that the saver was reading when the attempt ended
        if goes_on:
            self._begin_at(step)

    def _begin_at(self, step: int) -> None:
        """Let the ranks resume from the checkpoint of `step`, or decide anew if `step` is NONE."""
        try:
            kind, chosen = (Resume.STORAGE, step) if step != NONE else self.decide(first=False)
        except OSError as error:
            self._cannot(f"cannot go back: {error.filename or self.spec.checkpoint_dir}: {error.strerror}")
            return
        if kind is not Resume.UNDECIDED:
            self.pages.decide(kind, chosen, self.saving.first_due(chosen))

    def _begin_with(self, step: int) -> None:
        """Let the ranks begin with another job's checkpoint; end the job if none verified (`step` is NONE)."""
        load = self._found.load
        assert load is not None
        if step == NONE:
            self._cannot(initial.none_usable(load))
            return
        self._report(Loaded(load, step))
        kind = Resume.WEIGHTS if load.weights_only else Resume.LOADED
        self.pages.decide(kind, step, self.saving.first_due(0 if load.weights_only else step))
