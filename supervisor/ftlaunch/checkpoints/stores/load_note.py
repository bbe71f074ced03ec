"""What was brought from an address for a job to begin with: noted beside it, so that all nodes begin with the same."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files import atomic, checksums, untrusted_json
from ftlaunch_contract.files.regular_file import open_regular, read_regular
from ftlaunch_contract.files.untrusted_json import extents, mapping, text

NOTE = ".brought.json"
"""name of the note in the folder into which it was brought"""
_MOST_BYTES = 4 << 20  # of a note


@dataclass(frozen=True)
class LoadNote:
    """What a machine has brought from an address."""

    address: str
    steps: tuple[int, ...]
    """the steps of a job's store, the one to begin with last; empty: another program has put there what was brought"""
    beside: Mapping[str, str]
    """the small files beside the steps, by name"""
    digest: str
    """the checksum of all that was brought; two machines with the same have the same"""

    @classmethod
    def parse(cls, value: Any) -> LoadNote:
        """Return the note in a parsed JSON object. Raises ValueError if there is none."""
        found = mapping(value, "what was brought")
        return cls(
            address=text(found.get("address"), "its address"),
            steps=extents(found.get("steps"), "its steps"),
            beside={name: text(content, name) for name, content in mapping(found.get("beside"), "beside").items()},
            digest=text(found.get("digest"), "its digest"),
        )


def read_note(folder: Path) -> LoadNote | None:
    """Return the note in a folder; None if there is none, or one that cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return LoadNote.parse(untrusted_json.parse(read_regular(folder / NOTE, _MOST_BYTES)))
    return None


def write_note(folder: Path, note: LoadNote) -> None:
    """Write the note, once all that it is about lies in the folder. Raises OSError."""
    atomic.replace_durable(folder / NOTE, json.dumps(asdict(note)).encode())


def digest_of(folder: Path) -> str:
    """Return a checksum of all files below a folder, without the note.

    Of a checkpoint of ours only metadata.json is read, which has the checksums of its other files: they were verified.

    Raises:
        OSError: a file cannot be read.
    """
    found = [
        [path.relative_to(folder).as_posix(), path.stat().st_size, _content_digest(path)]
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != NOTE
    ]
    return checksums.of_whole(json.dumps(found).encode())


def _content_digest(path: Path) -> str:
    is_of_step = layout.step_of(path.parent) is not None and (path.parent / layout.METADATA).exists()
    if is_of_step and path.name != layout.METADATA:
        return ""
    with open_regular(path) as file:
        size = path.stat().st_size
        return checksums.of_blocks(
            checksums.of_block(file.fileno(), begin, end) for begin, end in checksums.blocks(size)
        )
