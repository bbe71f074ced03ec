"""Decides whether a command that asks for a fresh start begins anew or goes on. Standard library only.

Schedulers repeat command lines: a job that was stopped, or cut off with its machine, is started again by the command
that started it first, `--fresh` included. A fresh start is therefore for the first run of a command. The file
`fresh.json` in the checkpoint directory says which command began anew; the file is removed when that job is done or
given up, and by a start without `--fresh`. As long as the file is there, the same command goes on.
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
    """What a start makes of the wish to begin anew."""

    is_asked: bool
    begins_anew: bool
    """false where nobody asked for it, and where the run of this command that began anew goes on"""
    run: str = ""
    """names the run that began anew; empty where none did. Memory on other nodes is known by this name"""


@dataclass(frozen=True)
class Command:
    """The command line of a job, as far as it says which training is meant."""

    kind: str
    """script, module or program"""
    target: str
    args: Sequence[str]
    load: str
    """the checkpoint that is asked for; empty where there is none"""

    @property
    def digest(self) -> str:
        """A name of this command that holds none of its arguments, as these may be secret."""
        parts = [self.kind, self.target, *self.args, self.load]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def decide(checkpoint_dir: Path, command: Command, *, is_asked: bool, say: Callable[[str], None]) -> FreshStart:
    """Decide whether this start begins anew, and say so where it goes on although a fresh start is asked for.

    Args:
        checkpoint_dir: the job's own; the caller holds its lock.
        is_asked: whether `--fresh` is given. Without it the note of an earlier run is removed.

    Raises:
        OSError: the note cannot be removed.
    """
    note = checkpoint_dir / NOTE
    if not is_asked:
        note.unlink(missing_ok=True)
        return FreshStart(is_asked=False, begins_anew=False)
    known = _read(note)
    if known.get("command") != command.digest:
        return FreshStart(is_asked=True, begins_anew=True, run=secrets.token_hex(8))
    say(
        f"--fresh is for the first run of a command: this one began anew on {known['began']} and has not come to its"
        f" end, so it goes on; to begin anew once more, remove {note}"
    )
    return FreshStart(is_asked=True, begins_anew=False, run=known["run"])


def unfinished_run(checkpoint_dir: Path, command: Command) -> str:
    """Return the name of the run of `command` that began anew and has not come to its end; empty: there is none."""
    known = _read(checkpoint_dir / NOTE)
    return known["run"] if known.get("command") == command.digest else ""


def note_beginning(checkpoint_dir: Path, command: Command, run: str) -> None:
    """Note that `command` has begun anew: call it when everything of earlier runs has been put aside.

    Raises:
        OSError: the note cannot be written.
    """
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    told = {"command": command.digest, "began": time.strftime("%Y-%m-%d %H:%M:%S"), "run": run}
    atomic.replace_durable(checkpoint_dir / NOTE, json.dumps(told).encode())


def note_end(checkpoint_dir: Path) -> None:
    """Note that the job is over: the same command begins anew. Raises OSError."""
    (checkpoint_dir / NOTE).unlink(missing_ok=True)


def _read(note: Path) -> dict[str, str]:
    """Return `command`, `began` and `run` of the note; empty where there is no note that can be read."""
    try:
        told = untrusted_json.mapping(untrusted_json.parse(read_regular(note)), "the note")
        return {key: untrusted_json.text(told.get(key), f"`{key}`") for key in ("command", "began", "run")}
    except (OSError, ValueError):
        return {}
