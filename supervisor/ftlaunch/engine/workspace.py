"""The directories of a job: run dir, checkpoint directory and memory directory, locked, with what earlier runs left.

`engine/main.py` and the head of several nodes make one Workspace before anything else of the job is started, in the
main thread. The constructor decides what the job goes on from: its own memory, its checkpoints, or neither (--fresh).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftlaunch.checkpoints import job_seed, saver
from ftlaunch.checkpoints.resume import Inherited
from ftlaunch.checkpoints.stores.loading import LoadFetch
from ftlaunch.checkpoints.stores.opening import StoreClosedError, StoreOpening
from ftlaunch.engine.strange_files import find_strange_file
from ftlaunch.history import runs as history
from ftlaunch.history.journal import Journal
from ftlaunch.memory import memory_owner
from ftlaunch.memory.directory import count_pages, forget_snapshots, places_of, remove_memory
from ftlaunch.memory.earlier_ranks import find_earlier_ranks
from ftlaunch.memory.pages import Pages
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import of_moves, of_save
from ftlaunch.spec.job_spec import LOADED, JobSpec
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

_KEEP_ALL = sys.maxsize
"""checkpoints to keep in a save before the script has run, which may ask for a number of checkpoints to be kept"""
LIMIT_REACHED = "; the limit on processes (`ulimit -u`, or pids of the container) or memory is reached"


class Unusable(Exception):
    """The job cannot use its directories, or cannot start; the message is a sentence for the user."""


def limit_hint(error: OSError) -> str:
    """Return the hint to append to an error message if a limit on processes or memory is reached; else ""."""
    return LIMIT_REACHED if error.errno in (errno.EAGAIN, errno.ENOMEM) else ""


class Workspace:
    """Run dir, checkpoint directory and memory directory with their locks, the journal, and the pages.

    Attributes:
        spec: the job; `saving.fresh` is true if this start begins anew, not just because --fresh was given.
        memory_dir: the directory of pages and snapshots.
        checkpoints: the custody of the checkpoint directory.
        load: the checkpoint of another job to begin with; None if there is none or the job has a state of its own.
        seed: the seed of the job.
        journal: the journal, open for appending.
        files: the threads that touch the job's directories.
        pages: the pages of all ranks.
        earlier_pids: the processes of a run that was killed, which may hold GPU memory for a while.
        earlier_ranks: the ranks that some of them were, by pid.
    """

    def __init__(
        self, spec: JobSpec, say: Callable[[str], None], make_pages: Callable[[Path], Pages] | None = None,
        gone: Holder | None = None, *, takes_over: bool = False, store: StoreOpening | None = None,
        load_fetch: LoadFetch | None = None,
    ) -> None:  # fmt: skip
        """Make and lock the directories, and take over or put aside what earlier runs have left.

        Args:
            spec: the job.
            say: shows a sentence to the user.
            make_pages: makes the pages in the memory directory, for a head whose memory has no snapshots; None: the
                memory directory has pages and snapshots of all ranks, as on a single node.
            gone: a dead head whose place this one takes, and whose locks are ignored.
            takes_over: whether a head takes the place of a dead one. The job goes on then, even if the job was begun
                with --fresh.
            store: the checkpoint store of the job, which is opened; None: there is none.
            load_fetch: brings the checkpoint with which the job begins; None: that is no address.

        Raises:
            Unusable: the job cannot start. Directories and locks that were newly made are removed again.
        """
        self._gone = gone
        self._takes_over = takes_over
        self._store = store
        self._load_fetch = load_fetch
        self.changes: list[JobEvent] = []
        """events of saves, deletions and moves from before there was a journal"""
        self.spec = spec
        self.say = say
        self._make_pages = make_pages
        self._asked = self._find_asked()
        with contextlib.ExitStack() as undo:
            try:
                self._refuse_strange_files()
                self._lock_directories(undo)
                self._end_leftovers()
                self._bring_checkpoints(undo)
                self._clear_up()
                self.pages = self._open_pages()
                self.load = self._load_elsewhere()
                starts_over = self._fresh.is_fresh and self._own is None
                is_stored = store is not None and store.opened["newest"] != NONE
                self.seed = job_seed.settle(
                    spec.run_dir, spec.checkpoint_dir, load=self.load, fresh=starts_over, is_stored=is_stored
                )
                self.journal = Journal(spec.run_dir)
                self.files = FileThreads(_places_of_files(spec))
                if self._fresh.is_fresh:
                    fresh_start.note_beginning(spec.checkpoint_dir, spec.command, self._fresh.run)
                self.spec = replace(spec, saving=replace(spec.saving, fresh=self._fresh.is_fresh))
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

    def _find_asked(self) -> InitialCheckpoint | None:
        """Return the checkpoint to begin with, by the files that are there; None if none is asked for."""
        path = self.spec.saving.load_checkpoint
        return None if path is None else initial.asked(path, not self.spec.saving.resume_training)

    def _refuse_strange_files(self) -> None:
        """Raise Unusable if a FIFO or the like has the name of one of the job's files."""
        spec = self.spec
        found = find_strange_file(spec.run_dir, spec.log_dir, spec.checkpoint_dir)
        if found is not None:
            path, kind = found
            raise Unusable(f"cannot start: {path} is no regular file ({kind}); remove it, or name another place")

    def _lock_directories(self, undo: contextlib.ExitStack) -> None:
        """Make and lock the directories.

        Args:
            undo: gives back what was locked if a later directory cannot be locked.
        """
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
        self.checkpoints = self._lock_checkpoints()
        undo.callback(self.checkpoints.leave)
        places = places_of(spec.run_dir, spec.checkpoint_dir)
        memory = memory_owner.acquire(job_id=spec.job_id, places=places, wait=self._say_waiting, say=self.say)
        undo.callback(memory.give_back)
        self.memory_dir = memory.directory
        self.memory_lock = memory.lock

    def _end_leftovers(self) -> None:
        """End what an earlier supervisor left running."""
        self.earlier_ranks = find_earlier_ranks(self.memory_dir)
        leftovers = processes.kill_marked(self._marker)
        self.earlier_pids = self.earlier_ranks.keys() | leftovers
        if leftovers:
            self.say(f"ended {len(leftovers)} processes that an earlier supervisor of this job had left running")

    def _bring_checkpoints(self, undo: contextlib.ExitStack) -> None:
        """Bring what the job's store has, and this machine lacks. Raises StoreClosedError, OSError."""
        if self._store is None:
            return
        newest = self._newest_in_memory()
        undo.callback(self._store.close)
        opened = self._store.open(
            marker=self._marker,
            locks=self.locks,
            memory=self.memory_dir,
            newer_than=newest,
            say=self.say,
        )
        self.changes.append(opened)

    @property
    def _marker(self) -> str:
        """NAME=VALUE in the environment of the job's processes."""
        return f"{ENV_MEMORY_DIR}={self.memory_dir}"

    def _newest_in_memory(self) -> int:
        """Return the newest step that all ranks have in memory, or -1."""
        # The memory of a head of several nodes has mirrors of the nodes' pages, and no snapshots.
        if self._make_pages is not None or count_pages(self.memory_dir) != self.spec.launch.nproc:
            return NONE
        pages = Pages(self.memory_dir, self.spec.launch.nproc)
        newest = pages.newest_common()
        pages.close()
        return newest

    def _bring_load(self) -> None:
        """Bring what an address has to begin with, if the job has no state of its own.

        Raises:
            StoreClosedError: it cannot be brought, or the job was told to stop.
            OSError: no process can be started.
        """
        if self._load_fetch is None:
            return
        has_state = self._newest_in_memory() != NONE or layout.list_iterations(self.spec.checkpoint_dir)
        if has_state and not self._fresh.is_fresh:
            shutil.rmtree(self.spec.run_dir / LOADED, ignore_errors=True)  # of the first start
        else:
            self._load_fetch.fetch(self._marker, self.locks, self.say)
            self._asked = self._find_asked()

    def _bring_own(self) -> None:
        """Bring the step to which the job is to go back, if only its store has it. Raises StoreClosedError."""
        step = initial.step_to_go_back_to(self._own, self.spec.checkpoint_dir, self._fresh)
        if self._store is not None and step is not None:
            self._store.bring(step)

    def _have_store_follow(self) -> None:
        """Have the store know that checkpoints of the folder were put aside. Raises StoreClosedError."""
        if self._store is not None:
            newest = max((step for step, _ in layout.list_iterations(self.spec.checkpoint_dir)), default=NONE)
            self._store.put_aside(above=newest)

    def _clear_up(self) -> None:
        """Forget what the user does not want to go on from."""
        self._fresh = self._decide_fresh_start()
        self._bring_load()
        self._bring_own()
        if self._fresh.is_fresh and self._own is None:
            self._start_over()
        self._go_back()

    def _decide_fresh_start(self) -> FreshStart:
        spec = self.spec
        directory = spec.checkpoint_dir
        if self._takes_over:
            run = fresh_start.unfinished_run(directory, spec.command)
            return FreshStart(is_asked=False, is_fresh=False, run=run)
        return fresh_start.decide(directory, spec.command, is_asked=spec.saving.fresh, say=self.say)

    @property
    def fresh_run(self) -> str:
        """The name of the run, begun with --fresh, that this start begins or continues; "": there is none."""
        return self._fresh.run

    @property
    def inherited(self) -> Inherited:
        """What the first attempt finds on storage."""
        opened = {} if self._store is None else self._store.opened
        damaged_store = opened["where"] if opened.get("all_damaged") else ""
        return Inherited(self.load, self.checkpoints.unfinished, damaged_store)

    def _say_waiting(self, holder: int) -> None:
        self.say(f"waiting for the saver of an earlier supervisor (pid {holder}) to finish")

    def _lock_checkpoints(self) -> Custody:
        """Lock the checkpoint directory.

        Raises:
            Unusable: another job or another program saves there.
            OSError: the directory cannot be made or locked.
        """
        try:
            return Custody(directory=self.spec.checkpoint_dir, wait=self._say_waiting, say=self.say, gone=self._gone)
        except (Locked, ForeignCheckpoints) as error:
            raise Unusable(f"cannot start: {error}; give this job another --checkpoint-dir") from error

    @property
    def locks(self) -> list[int]:
        """Descriptors of the locks that the saver holds together with the supervisor."""
        return [self.memory_lock.fd, *self.checkpoints.fds]

    def _start_over(self) -> None:
        """Forget the snapshots in memory, and put the checkpoints aside, for --fresh. No checkpoint is deleted."""
        if self._asked is not None:
            initial.check(self._asked)  # may raise CannotLoad, so it must precede every change
        forget_snapshots(self.memory_dir)
        moved = layout.supersede(self.spec.checkpoint_dir)
        self._have_store_follow()
        if moved is not None:
            self._note_moves(moved, "--fresh")
            self.say(f"--fresh: earlier checkpoints are now in {moved}")

    def _go_back(self) -> None:
        """Put newer checkpoints aside if --load-checkpoint names one of the job's own checkpoints."""

        def forget_memory() -> None:
            inherited = count_pages(self.memory_dir)
            if inherited and not self._fresh.is_fresh:
                self._keep_snapshots_of(inherited, "without --load-checkpoint")
            forget_snapshots(self.memory_dir)

        aside = initial.settle_own(
            load=self._own,
            checkpoint_dir=self.spec.checkpoint_dir,
            fresh=self._fresh,
            forget_memory=forget_memory,
            say=self.say,
        )
        if aside is not None:
            self._have_store_follow()
            self._note_moves(aside, "--load-checkpoint")

    def _note_moves(self, aside: Path, why: str) -> None:
        steps = [step for step, _ in layout.list_iterations(aside)]
        self.changes += of_moves(aside, steps, why)

    def _load_elsewhere(self) -> InitialCheckpoint | None:
        """Return the checkpoint of another job to begin with; None if there is none, or the job has its own state."""
        load = None if self._own is not None else self._asked
        if load is None:
            return None
        stored = max((step for step, _ in layout.list_iterations(self.spec.checkpoint_dir)), default=NONE)
        step = max(self.pages.newest_common(), stored)
        if step == NONE:
            is_elsewhere = self._load_fetch is None and self.spec.saving.load_address is not None
            if not is_elsewhere:  # ranks run on, and began with it on machines of which this one may be none
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
        # A supervisor that was killed during a save has left its mark. Its saver has ended, or we would not have the
        # lock.
        pages.reading(NONE)
        return pages

    def _keep_snapshots_of(self, ranks: int, instead: str) -> None:
        """Save the newest snapshots in memory as a checkpoint, because this job cannot resume from memory.

        Args:
            ranks: the number of ranks that have left snapshots.
            instead: how to start if the save fails, as words after "start".

        Raises:
            Unusable: the save has failed.
        """
        pages = Pages(self.memory_dir, ranks)
        step = pages.newest_common()
        stored = max((number for number, _ in layout.list_iterations(self.spec.checkpoint_dir)), default=NONE)
        if step > max(stored, 0):
            slots = [str(layout.slot_dir(self.memory_dir, rank, pages.slot_of(rank, step))) for rank in range(ranks)]
            answer = saver.save(
                {
                    "step": step,
                    "why": "incident",
                    "checkpoint_dir": str(self.spec.checkpoint_dir),
                    "prefix": self.spec.job_id,
                    "ranks": slots,
                    "keep": _KEEP_ALL,
                    "keep_every": self.spec.saving.keep_every,
                }
            )
            if "error" in answer:
                raise Unusable(
                    f"cannot start: the snapshots of {ranks} ranks in memory could not be saved"
                    f" ({answer['error']}); start {instead}, or with --fresh"
                )
            events = of_save(answer, self.spec, keep=_KEEP_ALL, after_abnormal=False)
            self.changes += [event for event in events if event.name]
            self.say(f"saved step {step} of {ranks} ranks from memory")
        pages.close()

    def describe_unasked_restart(self, reached: int) -> str:
        """Return a sentence if the job had finished and begins anew although nobody asked for this; else "".

        Must be called before `job_started` is written to the journal.

        Args:
            reached: the newest step in memory, or -1.
        """
        end = history.load(self.spec.run_dir).end
        is_asked = self.spec.saving.fresh or self._asked is not None
        if is_asked or end is None or end["event"] != "job_finished" or reached != NONE:
            return ""
        if layout.list_iterations(self.spec.checkpoint_dir) or layout.refused_before(self.spec.checkpoint_dir):
            return ""
        return messages.restarted_after_end(str(end.get("t")), self.spec.checkpoint_dir)

    def note_end(self) -> None:
        """Note that the job is done or given up, so that the same command with --fresh begins anew. Raises OSError."""
        fresh_start.note_end(self.spec.checkpoint_dir)

    def forget_memory(self) -> None:
        """Remove pages and snapshots, whose state is on storage or is not needed. Raises OSError."""
        self.pages.close()
        remove_memory(self.memory_dir)

    def leave(self, *, storage_answers: bool = True, is_written: bool = True) -> None:
        """Release the locks and close the journal, the pages and the threads. Snapshots stay in memory.

        Args:
            storage_answers: whether storage may be touched. If not, the lock of the checkpoint directory ends with this
                process and with the saver.
            is_written: whether nothing waits to be written any more. If not, the run dir stays locked, and the journal
                open, until this process ends.

        Raises:
            OSError: a part could not be closed; all other parts are closed all the same.
        """
        with contextlib.ExitStack() as parts:  # runs the last callback first
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
    """Return the directories in which the supervisor touches files, and whose disks are checked for room."""
    places = [spec.run_dir, spec.log_dir, spec.checkpoint_dir]
    for find in (os.getcwd, tempfile.gettempdir):
        with contextlib.suppress(OSError):  # a working directory may be removed, a temporary one may not be found
            places.append(Path(find()))
    return places
