"""Refuses checkpoint directories in which another program saves. Nothing of another program's is ever changed.

MindSpore Transformers and Megatron-LM give the tracker file the name that ours has; MindSpore Transformers does so with
folders and files, too. A directory of theirs is refused before anything is trained, whatever the numbers of their
steps: nobody knows at the start at which step a job will end, a job may be set back to any step, and the other program
goes on writing there. If the other program begins to write while a job runs, a save fails (writer.py) and its files
stay.
"""

from __future__ import annotations

from pathlib import Path

from ftlaunch_contract import foreign_formats
from ftlaunch_contract.checkpoint import layout


class ForeignCheckpoints(Exception):
    """Another program saves to a directory; the message says which files belong to which program."""


def whose(path: Path) -> str:
    """Return a sentence on who made a path that lies in a checkpoint's place, or is to be loaded, but is not ours."""
    if program := foreign_formats.program_of(path):
        return f"{path} belongs to another program ({program})"
    return f"{path} has no mark of ftlaunch: another program, or somebody by hand, has made it"


def refuse_directory(checkpoint_dir: Path) -> None:
    """Check that nothing of another program's lies where this job would write checkpoints or the tracker file.

    Raises:
        ForeignCheckpoints: something does.
        OSError: the directory cannot be read.
    """
    why = ""
    if found := layout.list_foreign(checkpoint_dir):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        why = f"{whose(found[0][1])}{more}"
    elif layout.is_tracker_foreign(checkpoint_dir):
        tracker = checkpoint_dir / layout.TRACKER
        by = "Megatron-LM's layout: iter_<number> beside it" if layout.is_megatron(checkpoint_dir) else ""
        why = f"{tracker} belongs to another program ({by or 'no checkpoint of ftlaunch is beside it'})"
    if why:
        raise ForeignCheckpoints(f"{why}, and checkpoints of this job would meet it; nothing was changed")
