"""What other programs have put where this one saves checkpoints: it is named, refused, and never touched.

MindSpore Transformers and Megatron-LM call the tracker file as we do, and MindSpore Transformers the folders and their
files, too. A directory of theirs is refused before anything is trained, whatever the numbers of their steps: where a
job will end is not known when it starts, it may be set back to any step, and they go on writing there. What comes
there while a job runs makes a save fail (writer.py), and stays.
"""

from __future__ import annotations

from pathlib import Path

from ftlaunch_contract import foreign_formats
from ftlaunch_contract.checkpoint import layout


class ForeignCheckpoints(Exception):
    """Another program saves to a directory; the message says which files are whose."""


def whose(path: Path) -> str:
    """Whom something belongs to that lies in the place of a checkpoint of ours, or is to be loaded as one."""
    if program := foreign_formats.program_of(path):
        return f"{path} belongs to another program ({program})"
    return f"{path} has no mark of ftlaunch: another program, or somebody by hand, has made it"


def refuse_directory(checkpoint_dir: Path) -> None:
    """Raises ForeignCheckpoints where checkpoints of ours, or the tracker file, would meet another's; and OSError."""
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
