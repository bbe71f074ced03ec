"""Reads the settings of ranks without a supervisor from the environment. The defaults are the launcher's."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import initial, layout, writer
from ftlaunch_contract.checkpoint.fresh_start import Command
from ftlaunch_contract.checkpoint.initial import InitialCheckpoint
from ftlaunch_contract.protocol import MemoryInterval, Why


class AloneError(RuntimeError):
    """The ranks cannot run, or cannot go on, without a supervisor. The message is for the user."""


@dataclass(frozen=True)
class Settings:
    """The settings of one job without a supervisor."""

    checkpoint_dir: Path
    save_dir: Path
    """where a save is written: the checkpoint directory, or if several nodes upload it to a store one of this node's"""
    store: str | None
    """address of the checkpoint store that the directory's checkpoints go to, not checked yet; None: there is none"""
    take_over_store: bool
    """whether the store is taken over at once, though the machine that has kept it may only be cut off"""
    prefix: str
    """first part of the names of files in checkpoints: the job's id"""
    memory_interval: MemoryInterval
    every_steps: int | None
    """interval between saves, in steps; None: not in steps"""
    every_seconds: float | None
    """interval between saves, in seconds; None: not in seconds"""
    keep: int
    """number of newest checkpoints that are kept"""
    keep_every: int
    """steps whose multiples are kept for good; 0 is off"""
    bandwidth: float
    """bytes a second of all ranks' saves together; 0: without limit"""
    grace: float
    """seconds between a SIGTERM and the end"""
    fresh: bool
    """whether the user asked for a fresh start"""
    command: Command
    load: InitialCheckpoint | None
    """the checkpoint to begin with"""

    def of_node(self, place: int) -> Settings:
        """Return the settings for one of several nodes, which upload what they save.

        Args:
            place: the number of the node. Nodes that share a directory write into different ones below it.
        """
        return replace(self, save_dir=self.checkpoint_dir / f".part-{place}")

    def target(self, step: int, why: Why, world_size: int) -> writer.SaveTarget:
        """Describe the checkpoint of a step of this job."""
        return writer.SaveTarget(
            checkpoint_dir=self.save_dir,
            step=step,
            why=why.name.lower(),
            prefix=self.prefix,
            world_size=world_size,
        )

    def digest(self) -> int:
        """Return a digest (60 bits) of the settings that must be the same on all nodes.

        Each node derives from these settings, by itself, what all nodes do.
        """
        weights_only = self.load.weights_only if self.load is not None else None
        alike = (
            self.memory_interval,
            self.every_steps,
            self.every_seconds,
            self.keep,
            self.keep_every,
            self.fresh,
            weights_only,
            self.store,
        )
        return int(hashlib.sha256(repr(alike).encode()).hexdigest()[:15], 16)


def settings() -> Settings:
    """Read the settings from the environment. Raises AloneError if a value is not valid."""
    environ = os.environ
    for name in (protocol.ENV_RUN_DIR, protocol.ENV_LOAD_CHECKPOINT):
        _check_path(name, environ.get(name, ""))
    argv = sys.orig_argv
    module = argv[argv.index("-m") + 1] if "-m" in argv[: len(argv) - len(sys.argv) + 1] else None
    kind, target = ("module", module) if module else ("script", sys.argv[0] or "python")
    named = environ.get(protocol.ENV_JOB_ID)
    job_id = named or protocol.default_job_id(str(Path.cwd()), kind, target, sys.argv[1:], environ)
    run_dir = Path(environ.get(protocol.ENV_RUN_DIR, Path("runs") / job_id))
    asked = environ.get(protocol.ENV_CHECKPOINT_DIR)
    store = asked if asked is not None and protocol.scheme_of(asked) is not None else None
    checkpoint_dir = Path(run_dir / "checkpoints" if asked is None or store is not None else asked).absolute()
    every = environ.get(protocol.ENV_STORAGE_INTERVAL, protocol.DEFAULT_STORAGE_INTERVAL)
    try:
        seconds = float(every[:-1]) if every.endswith("s") else None
        steps = int(every) if seconds is None and every != "off" else None
        return Settings(
            checkpoint_dir=checkpoint_dir,
            save_dir=checkpoint_dir,
            store=store,
            take_over_store=environ.get(protocol.ENV_TAKE_OVER_STORE) == "1",
            prefix=job_id,
            memory_interval=protocol.memory_interval(
                environ.get(protocol.ENV_MEMORY_INTERVAL, protocol.DEFAULT_MEMORY_INTERVAL)
            ),
            every_steps=steps,
            every_seconds=seconds,
            keep=int(environ.get(protocol.ENV_KEEP, protocol.DEFAULT_KEEP)),
            keep_every=int(environ.get(protocol.ENV_KEEP_EVERY, "0")),
            bandwidth=float(environ.get(protocol.ENV_STORAGE_BANDWIDTH, "0")),
            grace=float(environ.get(protocol.ENV_GRACE, protocol.DEFAULT_GRACE_SECONDS)),
            fresh=environ.get(protocol.ENV_FRESH) == "1",
            command=Command(kind, target, sys.argv[1:], environ.get(protocol.ENV_LOAD_CHECKPOINT, "")),
            load=_load(checkpoint_dir),
        )
    except ValueError as error:
        raise AloneError(f"cannot attach: a FTLAUNCH_* variable is not a number ({error})") from None


def _check_path(name: str, value: str) -> None:
    """Raise AloneError if a variable names a store and no path. The address is not shown: it may have a password."""
    scheme = protocol.scheme_of(value)
    if scheme is None:
        return
    raise AloneError(
        f"cannot attach: {name} begins with {scheme}://, and without ftlaunch it must be the path of a folder; give a"
        f" folder, or have ftlaunch start the script, which reads checkpoints at such an address (ftlaunch"
        f" --load-checkpoint {scheme}://... train.py)"
    )


def _load(checkpoint_dir: Path) -> InitialCheckpoint | None:
    """Return the checkpoint to begin with, which the environment names by path or by step. Raises ValueError."""
    asked = os.environ.get(protocol.ENV_LOAD_CHECKPOINT)
    if not asked:
        return None
    path = layout.iteration_dir(checkpoint_dir, int(asked)) if asked.isdecimal() else Path(asked).absolute()
    return initial.asked(path, weights_only=os.environ.get(protocol.ENV_RESUME_TRAINING) == "0")
