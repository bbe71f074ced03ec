"""The places of a job: run dir and memory directory, locked; what an earlier life left in them."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftlaunch.checkpoints import job_seed, saver
from ftlaunch.checkpoints.stores.opening import StoreClosedError, StoreOpening
from ftlaunch.engine.strange_files import find_strange_file
from ftlaunch.history import runs as history
from ftlaunch.history.journal import Journal
from ftlaunch.memory import memory_owner
from ftlaunch.memory.directory import count_pages, forget_snapshots, places_of, remove_memory
from ftlaunch.memory.pages import Pages
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import of_moves, of_save
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import processes
from ftlaunch.system.file_thread import FileThreads
from ftlaunch_contract.checkpoint import fresh_start, initial, layout
from ftlaunch_contract.checkpoint.foreign import ForeignCheckpoints
from ftlaunch_contract.checkpoint.fresh_start import FreshStart
from ftlaunch_contract.checkpoint.initial import CannotLoad, InitialCheckpoint
from ftlaunch_contract.checkpoint.ownership import Custody, make_dirs, remove_dirs
from ftlaunch_contract.files.dirlock import LOCK, DirLock, Holder, Locked
from ftlaunch_contract.files.private_dir import NotPrivate
from ftlaunch_contract.protocol import ENV_MEMORY_DIR

_ALL = sys.maxsize  # checkpoints kept: how many that are the script may say, which has not run yet
LIMIT_REACHED = "; the limit on processes (`ulimit -u`, or pids of the container) or memory is reached"


class Unusable(Exception):
    """The job cannot use its places; the message is a sentence for the user."""


def limit_hint(error: OSError) -> str:
    """Return what is said besides where no process or thread can be started as a limit is reached; else nothing."""
    return LIMIT_REACHED if error.errno in (errno.EAGAIN, errno.ENOMEM) else ""


class Workspace:
    """Run dir, memory directory, their locks, the journal, and the pages.

    Attributes:
        spec: the job; `saving.fresh` is true where this start begins anew, not where it only was given --fresh.
    """

    def __init__(
        self, spec: JobSpec, say: Callable[[str], None], make_pages: Callable[[Path], Pages] | None = None,
        gone: Holder | None = None, *, takes_over: bool = False, store: StoreOpening | None = None,
    ) -> None:  # fmt: skip
        """Take possession. Raises Unusable; nothing is left behind then but what was there before.

        make_pages: makes the pages in the memory directory, which has no snapshots; None: pages and snapshots of all
        ranks are there. gone: a head in whose place this one works: its locks count for nothing. takes_over: a head
        works in the place of a dead one: it goes on with the job, also where that was begun with --fresh. store: the
        job's store, which is opened; None: there is none.
        """
        self._gone = gone
        self._takes_over = takes_over
        self._store = store
        self.changes: list[JobEvent] = []
        """what was saved, deleted and put aside before there was a journal"""
        self.spec, self.say, self._make_pages = spec, say, make_pages
        self._asked = (
            None
            if spec.saving.load_checkpoint is None
            else initial.asked(spec.saving.load_checkpoint, not spec.saving.resume_training)
        )
        with contextlib.ExitStack() as undo:
            try:
                self._refuse_strange_files()
                self._take_possession(undo)
                self._end_leftovers()
                self._bring_checkpoints(undo)
                self._clear_up()
                self.pages = self._open_pages()
                self.load = self._load_elsewhere()
                starts_over = self._fresh.begins_anew and self._own is None
                self.seed = job_seed.settle(spec.run_dir, spec.checkpoint_dir, load=self.load, fresh=starts_over)
                self.journal = Journal(spec.run_dir)
                self.files = FileThreads(_places_of_files(spec))
                if self._fresh.begins_anew:
                    fresh_start.note_beginning(spec.checkpoint_dir, spec.command, self._fresh.run)
                self.spec = replace(spec, saving=replace(spec.saving, fresh=self._fresh.begins_anew))
            except CannotLoad as error:
                raise Unusable(str(error)) from error
            except (Locked, NotPrivate) as error:
                raise Unusable(f"cannot start: {error}") from error
            except StoreClosedError as error:
                raise Unusable(str(error)) from error
            except OSError as error:
                name = error.filename or spec.run_dir
                raise Unusable(f"cannot start: {name}: {error.strerror}{limit_hint(error)}") from error
            undo.pop_all()

    def _refuse_strange_files(self) -> None:
        """Raises Unusable where a FIFO or the like is in the place of a file: whoever opens it may wait for ever."""
        spec = self.spec
        found = find_strange_file(spec.run_dir, spec.log_dir, spec.checkpoint_dir)
        if found is not None:
            path, kind = found
            raise Unusable(f"cannot start: {path} is no regular file ({kind}); remove it, or name another place")

    def _take_possession(self, undo: contextlib.ExitStack) -> None:
        """Make and lock the directories. undo: gives back what was taken, where something cannot be taken."""
        spec = self.spec
        mine = self._asked is not None and initial.is_own(self._asked, spec.checkpoint_dir)
        self._own = self._asked if mine else None
        made = make_dirs(spec.run_dir)
        undo.callback(remove_dirs, made)
        if made:
            undo.callback((spec.run_dir / LOCK).unlink, missing_ok=True)
        self.run_lock = DirLock(spec.run_dir, gone=self._gone)
        undo.callback(self.run_lock.release)
        if self.run_lock.warning:
            self.say(self.run_lock.warning)
        self.checkpoints = self._take_checkpoints()
        undo.callback(self.checkpoints.leave)
        places = places_of(spec.run_dir, spec.checkpoint_dir)
        memory = memory_owner.take(spec.job_id, places, self._wait_for, self.say)
        undo.callback(memory.give_back)
        self.memory_dir, self.memory_lock = memory.directory, memory.lock

    def _end_leftovers(self) -> None:
        """End what an earlier supervisor left running."""
        leftovers = processes.kill_marked(f"{ENV_MEMORY_DIR}={self.memory_dir}")
        if leftovers:
            self.say(f"ended {leftovers} processes that an earlier supervisor of this job had left running")

    def _bring_checkpoints(self, undo: contextlib.ExitStack) -> None:
        """Bring what the job's store has, and this machine lacks. Raises StoreClosedError, OSError."""
        if self._store is None:
            return
        newest = NONE
        if count_pages(self.memory_dir) == self.spec.launch.nproc:
            pages = Pages(self.memory_dir, self.spec.launch.nproc)
            newest = pages.newest_common()
            pages.close()
        undo.callback(self._store.close)
        opened = self._store.open(f"{ENV_MEMORY_DIR}={self.memory_dir}", self.locks, newest)
        self.changes.append(opened)

    def _have_store_follow(self) -> None:
        """Have the store know that checkpoints of the folder were put aside. Raises StoreClosedError."""
        if self._store is not None:
            newest = max((step for step, _ in layout.list_iterations(self.spec.checkpoint_dir)), default=NONE)
            self._store.put_aside(above=newest)

    def _clear_up(self) -> None:
        """Forget what the user does not want to go on from."""
        self._fresh = self._decide_fresh_start()
        if self._fresh.begins_anew and self._own is None:
            self._start_over()
        self._go_back()

    def _decide_fresh_start(self) -> FreshStart:
        spec = self.spec
        directory = spec.checkpoint_dir
        if self._takes_over:
            run = fresh_start.unfinished_run(directory, spec.command)
            return FreshStart(is_asked=False, begins_anew=False, run=run)
        return fresh_start.decide(directory, spec.command, is_asked=spec.saving.fresh, say=self.say)

    @property
    def fresh_run(self) -> str:
        """The name of the run that began anew and that this start begins or goes on with; empty: there is none."""
        return self._fresh.run

    def _wait_for(self, holder: int) -> None:
        self.say(f"waiting for the saver of an earlier supervisor (pid {holder}) to finish")

    def _take_checkpoints(self) -> Custody:
        """Raises Unusable while another job saves there, or another program, or OSError."""
        try:
            return Custody(self.spec.checkpoint_dir, self._wait_for, self.say, self._gone)
        except (Locked, ForeignCheckpoints) as error:
            raise Unusable(f"cannot start: {error}; give this job another --checkpoint-dir") from error

    @property
    def locks(self) -> list[int]:
        """Descriptors of the locks that the saver is to hold too."""
        return [self.memory_lock.fd, *self.checkpoints.fds]

    def _start_over(self) -> None:
        """--fresh: forget the memory, put checkpoints aside (never delete them)."""
        if self._asked is not None:
            initial.check(self._asked)  # before anything is changed
        forget_snapshots(self.memory_dir)
        moved = layout.supersede(self.spec.checkpoint_dir)
        self._have_store_follow()
        if moved is not None:
            self._note_moves(moved, "--fresh")
            self.say(f"--fresh: earlier checkpoints are now in {moved}")

    def _go_back(self) -> None:
        """--load-checkpoint of a step of the job's own."""

        def forget_memory() -> None:
            inherited = count_pages(self.memory_dir)
            if inherited and not self._fresh.begins_anew:
                self._keep_snapshots_of(inherited, "without --load-checkpoint")
            forget_snapshots(self.memory_dir)

        aside = initial.settle_own(self._own, self.spec.checkpoint_dir, self._fresh, forget_memory, self.say)
        if aside is not None:
            self._have_store_follow()
            self._note_moves(aside, "--load-checkpoint")

    def _note_moves(self, aside: Path, why: str) -> None:
        steps = [step for step, _ in layout.list_iterations(aside)]
        self.changes += of_moves(aside, steps, why)

    def _load_elsewhere(self) -> InitialCheckpoint | None:
        """What to begin with, for a job that has nothing of its own."""
        load = None if self._own is not None else self._asked
        if load is None:
            return None
        stored = max((step for step, _ in layout.list_iterations(self.spec.checkpoint_dir)), default=NONE)
        step = max(self.pages.newest_common(), stored)
        if step == NONE:
            initial.check(load)
            return load
        self.say(initial.not_first(load, step, self._fresh))
        return None

    def _open_pages(self) -> Pages:
        if self._make_pages is not None:
            return self._make_pages(self.memory_dir)
        inherited = count_pages(self.memory_dir)
        if inherited not in (0, self.spec.launch.nproc):
            self._keep_snapshots_of(inherited, f"with {inherited} ranks")
        pages = Pages(self.memory_dir, self.spec.launch.nproc)
        pages.reading(NONE)  # of a supervisor killed in mid-save: its saver has ended, else it held our lock
        return pages

    def _keep_snapshots_of(self, ranks: int, instead: str) -> None:
        """Snapshots that cannot be taken up in place, as of another number of ranks, become a checkpoint.

        instead: how to start where that fails.
        """
        pages = Pages(self.memory_dir, ranks)
        step = pages.newest_common()
        stored = max((s for s, _ in layout.list_iterations(self.spec.checkpoint_dir)), default=NONE)
        if step > max(stored, 0):
            slots = [str(layout.slot_dir(self.memory_dir, r, pages.slot_of(r, step))) for r in range(ranks)]
            answer = saver.save(
                {
                    "step": step,
                    "why": "incident",
                    "checkpoint_dir": str(self.spec.checkpoint_dir),
                    "prefix": self.spec.job_id,
                    "ranks": slots,
                    "keep": _ALL,
                    "keep_every": self.spec.saving.keep_every,
                }
            )
            if "error" in answer:
                raise Unusable(
                    f"cannot start: the snapshots of {ranks} ranks in memory could not be saved"
                    f" ({answer['error']}); start {instead}, or with --fresh"
                )
            told = of_save(answer, self.spec, keep=_ALL, after_abnormal=False)
            self.changes += [event for event in told if event.name]
            self.say(f"saved step {step} of {ranks} ranks from memory")
        pages.close()

    def begins_anew(self, reached: int) -> str:
        """A sentence on a job that has finished and begins anew though nobody asked for that; else nothing.

        reached: the newest step in memory, or -1. Must be called before `job_started` is written.
        """
        end, saving = history.load(self.spec.run_dir).end, self.spec.saving
        asked = saving.fresh or self._asked is not None
        if asked or end is None or end["event"] != "job_finished" or reached != NONE:
            return ""
        if layout.list_iterations(self.spec.checkpoint_dir) or layout.refused_before(self.spec.checkpoint_dir):
            return ""
        return messages.begins_anew(str(end.get("t")), self.spec.checkpoint_dir)

    def note_end(self) -> None:
        """Note that the job is done or given up: the same command with --fresh begins anew. Raises OSError."""
        fresh_start.note_end(self.spec.checkpoint_dir)

    def forget_memory(self) -> None:
        """Remove pages and snapshots: storage has what they hold. Raises OSError."""
        self.pages.close()
        remove_memory(self.memory_dir)

    def leave(self, *, storage_answers: bool = True, is_written: bool = True) -> None:
        """Give everything back, also what comes after a part that raises OSError; memory stays as it is.

        Storage that does not answer is not touched: its lock goes with this process and with the saver.

        is_written: whether nothing waits to be written any more.
        """
        with contextlib.ExitStack() as parts:  # the last one first
            if storage_answers and is_written:
                parts.callback(self.run_lock.release)
                parts.callback(self.checkpoints.leave)
            elif is_written:
                parts.callback(self.run_lock.forsake)
            parts.callback(self.memory_lock.release)
            parts.callback(self.pages.close)
            if is_written:
                parts.callback(self.journal.close)
            parts.callback(self.files.close)


def _places_of_files(spec: JobSpec) -> list[Path]:
    """Where the supervisor touches files while the job runs, and which disks it looks at when one may be full."""
    places = [spec.run_dir, spec.log_dir, spec.checkpoint_dir]
    for find in (os.getcwd, tempfile.gettempdir):
        with contextlib.suppress(OSError):  # removed; or no directory for temporary files is to be had
            places.append(Path(find()))
    return places
