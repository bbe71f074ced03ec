"""The places of a job: run dir and memory directory, locked; what an earlier life left in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ftlaunch import proc, saver
from ftlaunch.journal import DirLock, Journal, Locked
from ftlaunch.pages import (
    NotPrivate,
    Pages,
    count_pages,
    forget_snapshots,
    make_private,
    memory_dir,
    remove_memory,
    write_places,
)
from ftlaunch.recovery import NONE
from ftlaunch.spec import JobSpec
from ftlaunch_hooks import layout
from ftlaunch_hooks.protocol import ENV_MEMORY_DIR


class Unusable(Exception):
    """The job cannot use its places; the message is a sentence for the user."""


class Home:
    """Run dir, memory directory, their locks, the journal, and the pages."""

    def __init__(self, spec: JobSpec, say: Callable[[str], None]) -> None:
        """Take possession. Raises Unusable; nothing is left behind then but what was there before."""
        self.spec, self.say = spec, say
        self.memory_dir = memory_dir(spec.job_id)
        with contextlib.ExitStack() as undo:
            try:
                made = _make_dirs(spec.run_dir)
                undo.callback(_remove_dirs, made)
                lock = DirLock(spec.run_dir)
                undo.callback(lock.release)
                make_private(self.memory_dir)
                self.memory_lock = DirLock(self.memory_dir, self._wait_for)
                undo.callback(self.memory_lock.release)
                write_places(self.memory_dir, spec.run_dir, spec.checkpoint_dir)
                self.run_lock = lock
                leftovers = proc.kill_marked(f"{ENV_MEMORY_DIR}={self.memory_dir}")
                if leftovers:
                    say(f"ended {leftovers} processes that an earlier supervisor of this job had left running")
                if spec.fresh:
                    self._start_over()
                self.pages = self._open_pages()
                self.journal = Journal(spec.run_dir)
            except (Locked, NotPrivate) as error:
                raise Unusable(f"cannot start: {error}") from error
            except OSError as error:
                name = error.filename or spec.run_dir
                raise Unusable(f"cannot start: {name}: {error.strerror}") from error
            undo.pop_all()

    def _wait_for(self, holder: int) -> None:
        self.say(f"waiting for the saver of an earlier supervisor (pid {holder}) to finish")

    def _start_over(self) -> None:
        """--fresh: forget the memory, put checkpoints aside (never delete them)."""
        forget_snapshots(self.memory_dir)
        moved = layout.supersede(self.spec.checkpoint_dir)
        if moved is not None:
            self.say(f"--fresh: earlier checkpoints are now in {moved}")

    def _open_pages(self) -> Pages:
        inherited = count_pages(self.memory_dir)
        if inherited not in (0, self.spec.nproc):
            self._keep_snapshots_of(inherited)
        return Pages(self.memory_dir, self.spec.nproc)

    def _keep_snapshots_of(self, ranks: int) -> None:
        """Snapshots of another number of ranks cannot be taken up in place: they become a checkpoint."""
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
                    "keep": self.spec.keep,
                }
            )
            if "error" in answer:
                raise Unusable(
                    f"cannot change from {ranks} to {self.spec.nproc} ranks: the snapshots in memory could not"
                    f" be saved ({answer['error']}); start with {ranks} ranks, or with --fresh"
                )
            self.say(f"saved step {step} of {ranks} ranks from memory; resuming on {self.spec.nproc}")
        pages.close()

    def leave(self, keep_memory: bool) -> None:
        """Give everything back; memory goes unless it holds what storage does not."""
        self.journal.close()
        self.pages.close()
        if not keep_memory:
            remove_memory(self.memory_dir)
        self.memory_lock.release()
        self.run_lock.release()


def _make_dirs(path: Path) -> list[Path]:
    """mkdir -p; returns what was made, outermost first."""
    missing = [p for p in (path, *path.parents) if not p.exists()][::-1]
    for directory in missing:
        directory.mkdir(exist_ok=True)
    return missing


def _remove_dirs(made: list[Path]) -> None:
    for directory in reversed(made):
        (directory / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            directory.rmdir()
