"""What rank 0 does for all ranks: it chooses where they resume, announces stops and saves, and commits.

Where there are other nodes, the first rank of each leads its node, by nodes/nodes_leader.py.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import fresh_start, layout, retention, writer
from ftlaunch_contract.checkpoint.foreign import ForeignCheckpoints
from ftlaunch_contract.checkpoint.initial import CannotLoad
from ftlaunch_contract.checkpoint.ownership import Custody
from ftlaunch_contract.files.dirlock import Locked
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.process import bootstrap
from ftlaunch_hooks.process.operations import tell_operation
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone import resume_choice
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.settings import AloneError, Settings


def failed(step: int) -> int:
    """What a rank writes in the place of a step whose shard it could not write."""
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
    """Rank 0. Its orders to all ranks, itself included, stand in the second half of its page."""

    def __init__(self, peers: Peers, settings: Settings) -> None:
        self._peers, self._settings, self._orders = peers, settings, peers.leader
        self._custody: Custody | None = None
        self._next_time = time.monotonic() + (settings.every_seconds or 0.0)

    # --- where to resume --------------------------------------------------------------------------------------

    def decide_resume(self) -> None:
        """Look at storage, and tell all ranks where they resume. Raises AloneError."""
        self._orders.decide_resume(*self._choose())

    def _choose(self) -> tuple[Resume, int]:
        self._take_custody()
        return self._choose_from_storage()

    def _take_custody(self) -> None:
        directory = self._settings.checkpoint_dir
        try:
            self._custody = Custody(directory, self._wait_for, tell_operation)
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
                settings.checkpoint_dir, settings.load, settings.command, settings.fresh, tell_operation
            )
        except CannotLoad as error:
            raise AloneError(str(error)) from None

    def _wait_for(self, holder: int) -> None:
        directory = self._settings.checkpoint_dir
        say(f"waiting for the end of an earlier job (pid {holder}) that still saves to {directory}")

    def settle(self) -> None:
        """The loop is over: nothing is waited for."""

    def leave(self, *, is_finished: bool) -> None:
        """Give the checkpoint directory back.

        Args:
            is_finished: the script has ended and its last step is saved: the same command may begin anew.
        """
        if is_finished:
            self._note_end()
        if self._custody is not None:
            self._custody.leave()

    def _note_end(self) -> None:
        directory = self._settings.checkpoint_dir
        try:
            fresh_start.note_end(directory)
        except OSError as error:
            say(f"cannot note in {directory} that the job is over: {error.strerror}")

    def save_as(self, request: SavingRequest) -> None:
        """Save as the script asks. An interval in steps the ranks hold by themselves: nothing is announced for it."""
        if request.steps is not None or request.seconds is not None:
            self._settings = replace(self._settings, every_steps=None, every_seconds=request.seconds)
            self._next_time = time.monotonic() + (request.seconds or 0.0)
        if request.keep is not None:
            self._settings = replace(self._settings, keep=request.keep)

    # --- at step boundaries -----------------------------------------------------------------------------------

    def announce(self, step: int) -> None:
        """`step` steps are completed: announce a stop that was asked for, or the next save when it is due."""
        if self._orders.stop_at != NONE:
            return
        ahead = step if self._peers.world_size == 1 else step + 2  # in lockstep no rank is further than one step
        if any(page.stop_wanted for page in self._peers.pages):
            self._orders.stop_at = ahead
        elif not self._saving() and self._due():
            self._orders.persist_at = self._following(max(ahead, step + 1))

    def _saving(self) -> bool:
        return self._orders.persist_at > self._orders.saved

    def _save_wanted(self) -> bool:
        return any(page.want_save > self._orders.saved for page in self._peers.pages)

    def _due(self) -> bool:
        if self._save_wanted() or self._settings.every_steps is not None:
            return True  # an interval in steps: the next save is announced as soon as the one before it is done
        return self._settings.every_seconds is not None and time.monotonic() >= self._next_time

    def _following(self, earliest: int) -> int:
        every = self._settings.every_steps
        if every is None or self._save_wanted():
            return earliest
        return -(-earliest // every) * every

    # --- the checkpoint of all ranks' shards ------------------------------------------------------------------

    def grant(self, target: writer.SaveTarget) -> None:
        """Make the directory for the shards of a step; the other ranks wait for it. Raises OSError."""
        writer.prepare(target)
        self._orders.granted = target.step

    def commit(self, target: writer.SaveTarget) -> None:
        """Commit the checkpoint once all ranks have written their shards. Raises AloneError and OSError."""
        self._await_shards(target.step)
        self._commit(target)
        self._release(target.step)

    def _await_shards(self, step: int) -> None:
        """Wait until all ranks of the node have written their shards. Raises AloneError."""
        peers, pages = self._peers, self._peers.pages
        answers = (step, failed(step))

        def unanswered() -> list[int]:
            return [place for place, page in enumerate(pages) if page.shard_step not in answers]

        peers.wait(lambda: not unanswered(), unanswered)
        for rank, page in zip(peers.node.ranks, pages, strict=True):
            if page.shard_step != step:
                raise AloneError(f"rank {rank} could not write its shard")

    def _commit(self, target: writer.SaveTarget) -> None:
        directory, keep = self._settings.checkpoint_dir, self._settings.keep
        final = layout.iteration_dir(directory, target.step)

        def tell_of_displaced(to: Path) -> None:
            tell_operation(f"moved step {target.step} from {final} to {to} ({writer.MADE_AGAIN})")

        path, size = writer.commit(target, displaced=tell_of_displaced)
        tell_operation(f"saved step {target.step} ({target.why}, {size} bytes) to {path}")
        for step, note in retention.retire(directory, keep, self._settings.keep_every, target.step):
            tell_operation(note or f"deleted step {step}, {layout.iteration_dir(directory, step)} ({keep} are kept)")

    def give_up(self, target: writer.SaveTarget) -> None:
        """This step is not saved. Training goes on, and the next save that is due is tried."""
        with suppress(OSError):  # what is left is removed when the next save begins
            writer.discard(target)
        self._release(target.step)

    def _release(self, step: int) -> None:
        """Snapshots of steps up to `step` need not be held any longer."""
        self._next_time = time.monotonic() + (self._settings.every_seconds or 0.0)
        for page in self._peers.pages:
            page.saved = step
