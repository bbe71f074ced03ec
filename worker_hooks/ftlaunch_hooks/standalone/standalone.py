"""No supervisor: the ranks of a node answer to each other, and each saves for itself.

For the same script under torchrun, Slurm or plain `python`. The ranks share their pages (files that are
deleted once all have mapped them); rank 0 leads: at its step boundaries it announces where to stop and what
to save, and it commits. Where no boundary is reached in time (a rank is stuck in a collective), the watcher
threads save the newest step all ranks have in memory.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout, retention, tensor_file, writer
from ftlaunch_contract.checkpoint.initial import CannotLoad
from ftlaunch_contract.checkpoint.ownership import Custody
from ftlaunch_contract.files.dirlock import Locked
from ftlaunch_contract.files.private_dir import NotPrivate, make_private
from ftlaunch_contract.files.rate_limit import Bandwidth
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.standalone import resume_choice
from ftlaunch_hooks.standalone.rendezvous import meet
from ftlaunch_hooks.standalone.settings import AloneError, Settings, settings

_ROUND = 5.0  # seconds: a wait looks around so often whether it is in vain


def join() -> Standalone:
    """Meet the other ranks of this node. Raises AloneError."""
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if local != world_size:
        raise AloneError(
            f"cannot attach: {world_size} ranks on several nodes ({local} here); without a supervisor only the"
            " ranks of one node can agree on a step"
        )
    return Standalone(rank, world_size, settings())


class Standalone:
    """This rank, among its peers."""

    def __init__(self, rank: int, world_size: int, chosen: Settings) -> None:
        self.rank, self.world_size, self.settings = rank, world_size, chosen
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.memory_interval, self.checkpoint_dir = chosen.memory_interval, chosen.checkpoint_dir
        self.storage_slots = layout.storage_slots(chosen.checkpoint_dir, chosen.prefix)
        self.load_path = chosen.load.path if chosen.load is not None else Path()
        self.watched_lock = threading.Lock()
        self._root = protocol.memory_root(os.getuid())
        self.memory_dir = self._root / f"alone-{os.getpid()}-{protocol.own_start_time()}"  # see _memory_of
        self._saver: threading.Thread | None = None
        self._custody: Custody | None = None  # of rank 0
        atexit.register(self._clean, os.getpid())
        self.peers = self._meet()
        self.page = self.peers[rank]
        self.orders = self.peers[0]
        self._save_error: str | None = None
        self._snapshots: Snapshotter | None = None
        self._leaving = threading.Event()
        self._hurry = threading.Event()  # saving need not keep to its bandwidth
        self._next_time = time.monotonic() + (chosen.every_seconds or 0.0)

    def _meet(self) -> list[Page]:
        try:
            make_private(self.memory_dir)
            _sweep(self._root)
            return meet(self._root, self.rank, self.world_size, self.attempt)
        except NotPrivate as error:
            raise AloneError(f"cannot attach: {error}") from None
        except OSError as error:
            raise AloneError(f"cannot attach: {error.filename or self._root}: {error.strerror}") from None

    def _clean(self, pid: int) -> None:
        if os.getpid() == pid:
            self._wait_for_saver()
            if self._custody is not None:
                self._custody.leave()
            _forget(self.memory_dir)
            with suppress(OSError):
                self._root.rmdir()

    # --- resume -------------------------------------------------------------------------------------------

    def resume(self) -> tuple[Resume, int]:
        """Rank 0 looks at storage and tells the others."""
        if self.rank == 0:
            self.orders.decide_resume(*self._choose())
        while not wait_until(lambda: self.orders.resume[0] != Resume.UNDECIDED, time.monotonic() + _ROUND):
            self._expect_alive(0)
        return self.orders.resume

    def _choose(self) -> tuple[Resume, int]:
        try:
            self._custody = Custody(self.checkpoint_dir, self._wait_for, self._say)
            self._custody.forsake_in_children()
        except Locked as error:
            raise AloneError(f"cannot attach: {error}; give this job another checkpoint directory") from None
        except OSError as error:
            self._say(f"cannot lock {self.checkpoint_dir}: {error.strerror}; going on without")
        try:
            return resume_choice.choose(self.checkpoint_dir, self.settings.load, self.settings.fresh, self._say)
        except CannotLoad as error:
            raise AloneError(str(error)) from None

    def _wait_for(self, holder: int) -> None:
        self._say(f"waiting for the end of an earlier job (pid {holder}) that still saves to {self.checkpoint_dir}")

    def _expect_alive(self, rank: int) -> None:
        page = self.peers[rank]
        if protocol.process_start_time(page.pid) != page.start_time:
            raise AloneError(f"cannot go on: rank {rank} is gone")

    # --- at step boundaries ---------------------------------------------------------------------------------

    def at_boundary(self, step: int) -> None:
        """Rank 0 decides and announces; the others only read."""
        if self.rank != 0:
            return
        ahead = step if self.world_size == 1 else step + 2  # in lockstep no rank is further than one step
        if self.orders.stop_at == NONE and any(page.stop_wanted for page in self.peers):
            self.orders.stop_at = ahead
        elif self.orders.stop_at == NONE and not self._saving() and self._due(step):
            self.orders.persist_at = self._following(max(ahead, step + 1))

    def _saving(self) -> bool:
        return self.orders.persist_at > self.orders.saved

    def _due(self, step: int) -> bool:
        if any(page.want_save > self.orders.saved for page in self.peers):
            return True
        if self.settings.every_steps is not None:
            return True  # what follows is announced as soon as what went before is saved
        return self.settings.every_seconds is not None and time.monotonic() >= self._next_time

    def _following(self, earliest: int) -> int:
        every = self.settings.every_steps
        if every is None or any(page.want_save > self.orders.saved for page in self.peers):
            return earliest
        return -(-earliest // every) * every

    def _grant(self, step: int, why: Why) -> None:
        """Rank 0 makes room for the shards of a step; the others wait for it. Raises OSError."""
        writer.prepare(self._target(step, why))
        self.orders.granted = step

    def _target(self, step: int, why: Why) -> writer.SaveTarget:
        return writer.SaveTarget(self.checkpoint_dir, step, why.name.lower(), self.settings.prefix, self.world_size)

    def keep(self, snapshots: Snapshotter) -> None:
        """What there is to save from, should no boundary be reached."""
        self._snapshots = snapshots

    # --- saving -------------------------------------------------------------------------------------------

    def held(self, snapshots: Snapshotter, step: int, why: Why) -> None:
        """Save this rank's shard, beside the training; rank 0 commits once all shards are there."""
        self._wait_for_saver()
        if why == Why.STOP:
            self._leaving.set()
        self._saver = threading.Thread(
            target=self._save, args=(step, why, snapshots), name="ftlaunch-saver", daemon=True
        )
        self._saver.start()

    def _save(self, step: int, why: Why, snapshots: Snapshotter) -> None:
        self._save_error = None
        try:
            self._write(step, why, *snapshots.slot_files(step))
        except (OSError, LookupError, tensor_file.Damaged, AloneError) as error:
            self._save_error = str(error)
            sys.stderr.write(f"ftlaunch: rank {self.rank} cannot save step {step} to {self.checkpoint_dir}: {error}\n")
            if self.rank == 0:
                self._give_up(self._target(step, why))
            else:
                self.page.shard_step = _failed(step)

    def _write(self, step: int, why: Why, files: dict[str, int], common: bytes) -> None:
        target = self._target(step, why)
        if self.rank == 0:
            self._grant(step, why)
        self._wait_for_leader(lambda: self.orders.granted >= step or self.orders.saved >= step)
        if self.orders.granted < step:
            raise AloneError("rank 0 could not make room for it")
        bound = None
        if self.settings.bandwidth and why in (Why.INTERVAL, Why.REQUEST):
            bound = Bandwidth(self.settings.bandwidth / self.world_size, self._hurry.wait).spent
        writer.write_shard(target, self.rank, files, common, bound)
        self.page.shard_step = step
        if self.rank == 0:
            self._commit(target)
        else:
            self._wait_for_leader(lambda: self.orders.saved >= step)
            if not layout.iteration_dir(self.checkpoint_dir, step).is_dir():
                raise AloneError("not all ranks could write their shards")

    def _commit(self, target: writer.SaveTarget) -> None:
        step = target.step
        answers = (step, _failed(step))
        while not wait_until(lambda: all(p.shard_step in answers for p in self.peers), time.monotonic() + _ROUND):
            for rank in range(self.world_size):
                if self.peers[rank].shard_step not in answers:
                    self._expect_alive(rank)
        if failed := [rank for rank, page in enumerate(self.peers) if page.shard_step != step]:
            raise AloneError(f"rank {failed[0]} could not write its shard")
        path, _ = writer.commit(target)
        kept = self.settings.keep, self.settings.keep_every, step
        for _, note in retention.retire(self.checkpoint_dir, *kept):
            if note:
                self._say(note)
        self._release(step)
        self._say(f"saved step {step} to {path}")

    def _give_up(self, target: writer.SaveTarget) -> None:
        """Rank 0: this step is not saved; training goes on, and the next one that is due is tried."""
        with suppress(OSError):  # what is left goes with the next save that begins
            writer.discard(target)
        self._release(target.step)

    def _release(self, step: int) -> None:
        """Snapshots of steps up to `step` need not be held any longer."""
        self._next_time = time.monotonic() + (self.settings.every_seconds or 0.0)
        for page in self.peers:
            page.saved = step

    def _wait_for_leader(self, done: Callable[[], bool]) -> None:
        while not wait_until(done, time.monotonic() + _ROUND):
            self._expect_alive(0)

    def _wait_for_saver(self) -> None:
        if self._saver is not None:
            self._saver.join()

    def leave(self) -> int:
        """Wait until the checkpoint is committed; 75 when it is."""
        self._wait_for_saver()
        if self._save_error is not None:
            return protocol.EXIT_GIVEN_UP
        return protocol.EXIT_SAVED

    def finish(self) -> None:
        """The loop is over: its last step is on storage before the script goes on."""
        self._hurry.set()
        self._wait_for_saver()

    # --- signals ------------------------------------------------------------------------------------------

    def on_term(self, signum: int) -> None:
        """Note the wish, pass it on, and see to it that something is saved should no boundary be reached."""
        if self.page.stop_wanted:
            return  # once is enough
        self.page.stop_wanted = signum
        self._hurry.set()
        for peer in self.peers:
            if peer is not self.page and not peer.stop_wanted:
                with suppress(ProcessLookupError):
                    os.kill(peer.pid, signal.SIGTERM)
        threading.Thread(target=self._rescue, name="ftlaunch-rescue", daemon=True).start()

    def on_orphaned(self) -> None:
        """There is no supervisor to lose."""

    def _rescue(self) -> None:
        """Half of the grace is for reaching a boundary; then the newest common snapshot is saved from here.

        One rank saves for all, from their snapshots: a peer may be stuck so that not even its threads run.
        It is rank 0, or the next one should rank 0 be the one that is stuck.
        """
        if self._leaving.wait(self.settings.grace / 2):
            return
        self.page.leave = True  # a main thread that waits for a peer's snapshot lets go of the lock
        turn = self.rank * self.settings.grace / 8
        with self.watched_lock:
            if wait_until(lambda: self.page.granted != NONE, time.monotonic() + turn):
                wait_until(lambda: self.page.saved >= self.page.granted, time.monotonic() + self.settings.grace)
                code = protocol.EXIT_SAVED if self._stored() != NONE else protocol.EXIT_STOPPED
            else:
                code = self._save_for_all()
        _forget(self.memory_dir)
        os._exit(code)

    def _stored(self) -> int:
        return max((step for step, _ in layout.list_iterations(self.checkpoint_dir)), default=NONE)

    def _save_for_all(self) -> int:
        step, stored = _newest_common(self.peers), self._stored()
        for peer in self.peers:
            peer.granted = step
        code = protocol.EXIT_SAVED if stored != NONE else protocol.EXIT_STOPPED
        if step > max(stored, 0):
            sys.stderr.write(f"ftlaunch: no step boundary was reached: saving step {step} from memory\n")
            code = self._commit_from_memory(step)
        for peer in self.peers:
            peer.saved = step
            _forget(self._memory_of(peer))  # one that is stuck cannot do it
        return code

    def _memory_of(self, peer: Page) -> Path:
        return self._root / f"alone-{peer.pid}-{peer.start_time}"

    def _commit_from_memory(self, step: int) -> int:
        target = self._target(step, Why.STOP)
        try:
            writer.prepare(target)
            for rank, peer in enumerate(self.peers):
                slot = layout.slot_dir(self._memory_of(peer), rank, peer.slot_steps().index(step))
                writer.write_shard_of(target, rank, slot)
            writer.commit(target)
        except (OSError, tensor_file.Damaged) as error:
            sys.stderr.write(f"ftlaunch: cannot save step {step} to {self.checkpoint_dir}: {error}\n")
            return protocol.EXIT_GIVEN_UP
        return protocol.EXIT_SAVED

    def _say(self, text: str) -> None:
        if self.rank == 0:
            sys.stderr.write(f"ftlaunch: {text}\n")
            sys.stderr.flush()


def _failed(step: int) -> int:
    """What a rank says in the place of a step whose shard it could not write."""
    return NONE - 1 - step


def _newest_common(pages: list[Page]) -> int:
    common = set(pages[0].slot_steps())
    for page in pages[1:]:
        common &= set(page.slot_steps())
    return max(common)


def _sweep(root: Path) -> None:
    """Delete what processes that were killed have left."""
    for directory in root.glob("alone-*-*"):
        _, pid, start = directory.name.split("-")
        if protocol.process_start_time(int(pid)) != int(start):
            _forget(directory)


def _forget(directory: Path) -> None:
    """Delete a memory directory, and what of it lies on storage; it may be deleted by two at once."""
    with suppress(OSError):
        layout.remove_slots(directory)
    shutil.rmtree(directory, ignore_errors=True)
