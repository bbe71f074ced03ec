"""Leads the ranks of a job without a supervisor, in rank 0: chooses where they resume, announces stops, commits saves.

`NodeLeader` serves jobs on one node. On several nodes the first rank of each node leads its node by the subclass in
nodes/nodes_leader.py. The thread that trains calls `decide_resume` and `announce`; the saver thread (shard_saver.py)
calls `grant`, `commit` and `give_up`.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import fresh_start, initial, layout, retention, writer
from ftlaunch_contract.checkpoint.foreign import ForeignCheckpoints
from ftlaunch_contract.checkpoint.initial import CannotLoad
from ftlaunch_contract.checkpoint.ownership import Custody
from ftlaunch_contract.files.dirlock import Locked
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.process import bootstrap
from ftlaunch_hooks.process.operations import log_operation
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone import resume_choice
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.settings import AloneError, Settings
from ftlaunch_hooks.standalone.store_keeper import StoreKeeper

_LAST = (Why.STOP.name.lower(), Why.END.name.lower())  # why a step is saved that may be the last one of this machine


def failed(step: int) -> int:
    """Return the number that a rank writes in place of `step` if it could not write its shard of that step."""
    return NONE - 1 - step


def _why_locked(error: Locked, directory: Path) -> str:
    if error.holder != bootstrap.supervisor_of_job():
        return f"cannot attach: {error}; give this job another checkpoint directory"
    return (
        f"cannot attach: ftlaunch (pid {error.holder}) runs this job and saves to {directory}, and this process is none"
        " of its ranks: another launcher (torchrun, mpirun) or a rank has started it; have ftlaunch start the script"
        " itself, in the other launcher's place (ftlaunch --nproc-per-node 2 train.py); a job of its own below a rank"
        f" needs another {protocol.ENV_CHECKPOINT_DIR}"
    )


class NodeLeader:
    """Rank 0's part. Its orders to all ranks, itself included, are in the second half of its page."""

    def __init__(self, peers: Peers, settings: Settings) -> None:
        """Lead `peers`, the ranks of this node, by the job's settings. Nothing is announced yet."""
        self._peers = peers
        self._settings = settings
        self._orders = peers.leader
        self._custody: Custody | None = None
        self._store: StoreKeeper | None = None
        self._next_time = time.monotonic() + (settings.every_seconds or 0.0)

    # --- where to resume --------------------------------------------------------------------------------------

    def decide_resume(self) -> None:
        """Take the checkpoint directory into custody, choose where to resume, and tell all ranks.

        Raises:
            AloneError: another job uses the directory, or the checkpoint that was asked for cannot be loaded.
            OSError: storage cannot be read, or earlier checkpoints cannot be put aside.
        """
        kind, step = self._choose()
        self._orders.decide_resume(kind, step)

    def _choose(self) -> tuple[Resume, int]:
        self._acquire_custody()
        if self._settings.store is None:
            return self._choose_from_storage()
        return self._choose_with_store()

    def _acquire_custody(self) -> None:
        directory = self._settings.checkpoint_dir
        try:
            self._custody = Custody(directory, self._wait_for, log_operation)
            self._custody.forsake_in_children()
        except Locked as error:
            raise AloneError(_why_locked(error, directory)) from None
        except ForeignCheckpoints as error:
            raise AloneError(f"cannot attach: {error}; give this job another {protocol.ENV_CHECKPOINT_DIR}") from None
        except OSError as error:
            say(f"cannot lock {directory}: {error.strerror}; going on without")

    def _choose_from_storage(self) -> tuple[Resume, int]:
        settings = self._settings
        try:
            return resume_choice.choose(
                settings.checkpoint_dir,
                load=settings.load,
                command=settings.command,
                is_fresh_asked=settings.fresh,
                say=log_operation,
            )
        except CannotLoad as error:
            raise AloneError(str(error)) from None

    def _choose_with_store(self) -> tuple[Resume, int]:
        """Open the store, and choose from the directory what it has then. The store follows what was put aside."""
        locks = [] if self._custody is None else self._custody.fds
        self._store = store = StoreKeeper(self._settings, locks, self._stop)
        store.open()
        directory = self._settings.checkpoint_dir
        if (asked := self._own_step_asked_for()) is not None:
            store.bring_step(asked)
        self._refuse_damaged(store)
        kind, step = self._choose_from_storage()
        # A checkpoint of the directory may have been refused. Only then the store can have a newer one than was chosen.
        if kind in (Resume.STORAGE, Resume.REFUSED) and store.bring_better(step):
            kind, step = self._choose_from_storage()
        if kind is Resume.REFUSED:  # nothing there is changed, so that no other machine begins anew
            return kind, step
        store.put_aside(above=max((step for step, _ in layout.list_iterations(directory)), default=NONE))
        store.follow(self._settings.keep, self._settings.keep_every, is_last=False)
        return kind, step

    def _refuse_damaged(self, store: StoreKeeper) -> None:
        """Raise AloneError if the store has nothing but damaged steps, and this machine has none."""
        settings = self._settings
        if store.has_only_damaged and not (settings.fresh or layout.list_iterations(settings.checkpoint_dir)):
            raise AloneError(
                f"cannot resume: all checkpoints in {store.where} are damaged, and this machine has none;"
                f" {protocol.ENV_FRESH}=1 starts over (their files stay there)"
            )

    def _own_step_asked_for(self) -> int | None:
        """Return which of the job's own checkpoints the job is to begin with, if one was asked for by its step."""
        settings = self._settings
        try:
            is_own = settings.load is not None and initial.is_own(settings.load, settings.checkpoint_dir)
        except CannotLoad as error:
            raise AloneError(str(error)) from None
        return layout.step_of(settings.load.path) if is_own and settings.load is not None else None

    def _stop(self) -> None:
        self._peers.page.stop_wanted = signal.SIGTERM

    def hurry(self) -> None:
        """Let an upload go on as fast as it can."""
        if self._store is not None:
            self._store.hurry()

    def _wait_for(self, holder: int) -> None:
        directory = self._settings.checkpoint_dir
        say(f"waiting for the end of an earlier job (pid {holder}) that still saves to {directory}")

    def settle(self) -> None:
        """Do nothing at the end of the loop: on one node no exchange is under way."""

    def leave(self, *, is_finished: bool) -> None:
        """Release the checkpoint directory.

        Args:
            is_finished: whether the script has ended and its last step is saved, so that the same command may start a
                new job.
        """
        if is_finished:
            self._note_end()
        if self._store is not None:
            self._store.leave()
        if self._custody is not None:
            self._custody.leave()

    def _note_end(self) -> None:
        directory = self._settings.checkpoint_dir
        try:
            fresh_start.note_end(directory)
        except OSError as error:
            say(f"cannot note in {directory} that the job is over: {error.strerror}")

    def save_as(self, request: SavingRequest) -> None:
        """Use the interval and the number of kept checkpoints that the script asks for, as far as it names them.

        An interval in steps needs no announcements, because each rank follows such an interval by itself.
        """
        if request.steps is not None or request.seconds is not None:
            self._settings = replace(self._settings, every_steps=None, every_seconds=request.seconds)
            self._next_time = time.monotonic() + (request.seconds or 0.0)
        if request.keep is not None:
            self._settings = replace(self._settings, keep=request.keep)

    # --- at step boundaries -----------------------------------------------------------------------------------

    def announce(self, step: int) -> None:
        """Announce a stop that was asked for, or the next save if it is due. `step` steps are completed."""
        if self._orders.stop_at != NONE:
            return
        ahead = step if self._peers.world_size == 1 else step + 2  # in lockstep other ranks are one step ahead at most
        if any(page.stop_wanted for page in self._peers.pages):
            self._orders.stop_at = ahead
        elif not self._is_saving() and self._is_save_due():
            self._orders.persist_at = self._next_save_step(max(ahead, step + 1))

    def _is_saving(self) -> bool:
        return self._orders.persist_at > self._orders.saved

    def _is_save_asked(self) -> bool:
        return any(page.want_save > self._orders.saved for page in self._peers.pages)

    def _is_save_due(self) -> bool:
        if self._is_save_asked() or self._settings.every_steps is not None:
            return True  # with an interval in steps the next save is announced as soon as the previous save is over
        return self._settings.every_seconds is not None and time.monotonic() >= self._next_time

    def _next_save_step(self, earliest: int) -> int:
        """Return `earliest`; with an interval in steps its next multiple, unless a rank has asked for a save."""
        every = self._settings.every_steps
        if every is None or self._is_save_asked():
            return earliest
        return -(-earliest // every) * every

    # --- the checkpoint of all ranks' shards ------------------------------------------------------------------

    def grant(self, target: writer.SaveTarget) -> None:
        """Make the directory for the shards of a step, for which the other ranks wait.

        Raises:
            OSError: the directory cannot be made.
            AloneError: with several nodes, another node is gone or could not make room.
        """
        writer.prepare(target)
        self._orders.granted = target.step

    def commit(self, target: writer.SaveTarget) -> None:
        """Wait until all ranks have written their shards, commit the checkpoint, and release the snapshots.

        Raises:
            AloneError: a rank could not write its shard, or is gone.
            OSError: the checkpoint cannot be committed.
            Damaged: a shard is damaged.
        """
        self._await_shards(target.step)
        self._commit(target)
        self._release(target.step)

    def _await_shards(self, step: int) -> None:
        """Wait until all ranks of the node have written their shards. Raises AloneError."""
        peers = self._peers
        pages = peers.pages
        answers = (step, failed(step))

        def unanswered() -> list[int]:
            return [place for place, page in enumerate(pages) if page.shard_step not in answers]

        peers.wait(lambda: not unanswered(), unanswered)
        for rank, page in zip(peers.node.ranks, pages, strict=True):
            if page.shard_step != step:
                raise AloneError(f"rank {rank} could not write its shard")

    def _commit(self, target: writer.SaveTarget) -> None:
        directory = self._settings.checkpoint_dir
        keep = self._settings.keep
        final = layout.iteration_dir(directory, target.step)

        def log_displaced(to: Path) -> None:
            log_operation(f"moved step {target.step} from {final} to {to} ({writer.REPEATED_STEP})")

        path, size = writer.commit(target, on_displaced=log_displaced)
        log_operation(f"saved step {target.step} ({target.why}, {size} bytes) to {path}")
        retired = retention.retire(directory, keep, keep_every=self._settings.keep_every, spare=target.step)
        for step, note in retired:
            log_operation(note or f"deleted step {step}, {layout.iteration_dir(directory, step)} ({keep} are kept)")
        self.follow(is_last=target.why in _LAST)

    def follow(self, *, is_last: bool) -> None:
        """Have the store follow the directory, if there is one. Wait for it if nobody may be left to bring it there."""
        if self._store is not None:
            self._store.follow(self._settings.keep, self._settings.keep_every, is_last=is_last)
            if is_last:
                self._store.wait()

    def give_up(self, target: writer.SaveTarget) -> None:
        """Discard a step that could not be saved. Training continues, and the next save that is due is tried."""
        with suppress(OSError):  # the next save removes what is left
            writer.discard(target)
        self._release(target.step)

    def _release(self, step: int) -> None:
        """Tell all ranks that they need not hold snapshots of steps up to `step` any longer."""
        self._next_time = time.monotonic() + (self._settings.every_seconds or 0.0)
        for page in self._peers.pages:
            page.saved = step
