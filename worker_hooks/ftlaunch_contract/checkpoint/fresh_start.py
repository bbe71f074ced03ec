"""Decides whether a command that asks for a fresh start begins anew or goes on. Standard library only.

Schedulers repeat command lines: a job that was stopped, or lost its machine, is started again by the command that
started it first, `--fresh` included. A fresh start therefore applies only to the first run of a command. The file
`fresh.json` in the checkpoint directory says which command began anew. As long as the file is there, the same command
goes on. It is removed when that job is done or given up, and by a start without `--fresh`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftlaunch_contract.files import atomic, untrusted_json
from ftlaunch_contract.files.regular_file import read_regular

NOTE = "fresh.json"


@dataclass(frozen=True)
class FreshStart:
    """What a start does about the request to begin anew."""

    is_asked: bool
    is_fresh: bool
    """False without a request, and where an unfinished run of the same command goes on"""
    run: str = ""
    """name of the run that began anew; empty where none did. Copies in other nodes' memory carry this name"""


@dataclass(frozen=True)
class Command:
    """The parts of a job's command line that identify the training."""

    kind: str
    """script, module or program"""
    target: str
    args: Sequence[str]
    load: str
    """the checkpoint to load; empty where none is given"""

    @property
    def digest(self) -> str:
        """Return a hash that identifies the command without showing its arguments, which may be secret."""
        parts = [self.kind, self.target, *self.args, self.load]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def decide(checkpoint_dir: Path, command: Command, *, is_asked: bool, say: Callable[[str], None]) -> FreshStart:
    """Decide whether this start begins anew, and call `say` where a run goes on although a fresh start is asked for.

    Args:
        checkpoint_dir: the job's own; the caller holds its lock.
        command: the command of this start.
        is_asked: whether `--fresh` is given. Without it the note of an earlier run is removed.
        say: called with a sentence for the user.

    Raises:
        OSError: the note cannot be removed.
    """
    note = checkpoint_dir / NOTE
    if not is_asked:
        note.unlink(missing_ok=True)
        return FreshStart(is_asked=False, is_fresh=False)
    known = _read(note)
    if known.get("command") != command.digest:
        return FreshStart(is_asked=True, is_fresh=True, run=secrets.token_hex(8))
    say(
        f"--fresh is for the first run of a command: this one began anew on {known['began']} and has not come to its"
        f" end, so it goes on; to begin anew once more, remove {note}"
    )
    return FreshStart(is_asked=True, is_fresh=False, run=known["run"])


def unfinished_run(checkpoint_dir: Path, command: Command) -> str:
    """Return the name of the unfinished run of `command` that began anew; empty where there is none."""
    known = _read(checkpoint_dir / NOTE)
    return known["run"] if known.get("command") == command.digest else ""


def note_beginning(checkpoint_dir: Path, command: Command, run: str) -> None:
    """Note that `command` has begun anew. Call this once everything of earlier runs has been put aside.

    Raises:
        OSError: the note cannot be written.
    """
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    note = {"command": command.digest, "began": time.strftime("%Y-%m-%d %H:%M:%S"), "run": run}
    atomic.replace_durable(checkpoint_dir / NOTE, json.dumps(note).encode())


def note_end(checkpoint_dir: Path) -> None:
    """Note that the job is over, so that the same command begins anew next time. Raises OSError."""
    (checkpoint_dir / NOTE).unlink(missing_ok=True)


def _read(note: Path) -> dict[str, str]:
    """Return `command`, `began` and `run` of the note; an empty dict where no note can be read."""
    try:
        content = untrusted_json.mapping(untrusted_json.parse(read_regular(note)), "the note")
        return {key: untrusted_json.text(content.get(key), f"`{key}`") for key in ("command", "began", "run")}
    except (OSError, ValueError):
        return {}
