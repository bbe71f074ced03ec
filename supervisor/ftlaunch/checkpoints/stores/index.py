"""The index of a checkpoint store: which job keeps which steps there, in which objects. Pure.

The index is one small object, replaced as a whole on the condition that nobody else has replaced it. So a step is
committed by one request, a reader never sees half a step, and a process that was overtaken cannot commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files import untrusted_json
from ftlaunch_contract.files.untrusted_json import extents, mapping, plain_name, text, whole

NAME = "ftlaunch.json"
"""the name of the object"""
OBJECTS = "steps/"
"""how the names of all objects that hold files of checkpoints begin"""
PROBE = f"{OBJECTS}probe-"
"""how the names of objects begin on which a process tries conditions before it claims; the term of the index follows"""
_VERSION = 1


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint."""

    object: str
    """name of the object that holds the file"""
    bytes: int
    digest: str
    """a checksum over the checksums of the file's blocks, which metadata.json has one by one"""


@dataclass(frozen=True)
class StoredStep:
    """One committed checkpoint."""

    files: Mapping[str, StoredFile]
    """the files by name"""
    health: str
    """normal, abnormal or unknown"""
    needs: tuple[int, ...] = ()
    """the steps at which earlier trainings of the process ended: a resume from this step reads their checkpoints"""

    @property
    def objects(self) -> set[str]:
        """The names of the step's objects."""
        return {file.object for file in self.files.values()}

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files.values())


@dataclass(frozen=True)
class Index:
    """What a store has."""

    job: str
    """id of the job whose checkpoints these are"""
    term: int
    """number of the process that keeps the store, from 1; each one that takes over has the next"""
    owner: str
    """host and pid of that process, for people"""
    claim: str = ""
    """random token of this owner's claim. If a directory's note lists it, nobody has kept the store elsewhere since."""
    steps: Mapping[int, StoredStep] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    """steps that were found damaged, and why: they are not read again, and go once newer ones are there"""
    aside: Mapping[str, StoredStep] = field(default_factory=dict)
    """checkpoints that the job has gone back behind, or that a fresh start has put aside, by a unique name for each"""
    lives: tuple[str, ...] = ()
    """of a job of several nodes: the names of the lives whose snapshots in memory are of the training that the store
    has; a life is from one start of the job to the next"""
    beside: Mapping[str, str] = field(default_factory=dict)
    """small files of the checkpoint directory that a resume needs besides the checkpoint, by name"""

    def with_owner(self, owner: str, claim: str) -> Index:
        """Return the index of the process that takes over."""
        return replace(self, term=self.term + 1, owner=owner, claim=claim)

    @property
    def objects(self) -> set[str]:
        """The names of the objects of all checkpoints, those put aside included."""
        return {name for stored in (*self.steps.values(), *self.aside.values()) for name in stored.objects}

    @property
    def digests(self) -> dict[str, str]:
        """The checksum of metadata.json, and with it of all files, of each step that was not refused."""
        return {
            str(step): stored.files[layout.METADATA].digest
            for step, stored in self.steps.items()
            if step not in self.refused and layout.METADATA in stored.files
        }

    def find_leftovers(self, names: Iterable[str]) -> list[str]:
        """Return the names of objects that were uploaded and not committed.

        Probes of this term are not among them: they may belong to processes that are about to claim the store.

        Args:
            names: the names of all objects that begin with `OBJECTS`.
        """
        used = self.objects
        probe = f"{PROBE}{self.term}-"
        return [name for name in names if name not in used and not name.startswith(probe)]


def dump(index: Index) -> bytes:
    """Return the content of the object."""
    content = {
        "version": _VERSION,
        **asdict(index),
        "steps": {str(step): asdict(stored) for step, stored in sorted(index.steps.items())},
        "refused": {str(step): why for step, why in sorted(index.refused.items())},
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def parse(data: bytes) -> Index:
    """Return the index that the object holds.

    Raises:
        ValueError: it holds no index of this version; the message is a part of a sentence.
    """
    content = mapping(untrusted_json.parse(data), "the index")
    version = whole(content.get("version"), "`version`")
    if version != _VERSION:
        raise ValueError(f"the index has version {version}, and this ftlaunch reads version {_VERSION}")
    steps = {
        _step(number): _stored_step(mapping(entry, f"step {number}"))
        for number, entry in mapping(content.get("steps"), "`steps`").items()
    }
    refused = mapping(content.get("refused"), "`refused`")
    aside = mapping(content.get("aside"), "`aside`")
    beside = mapping(content.get("beside"), "`beside`")
    lives = content.get("lives", [])
    if not isinstance(lives, list):
        raise ValueError("`lives` is no list")
    return Index(
        job=text(content.get("job"), "`job`"),
        term=whole(content.get("term"), "`term`"),
        owner=text(content.get("owner"), "`owner`"),
        claim=text(content.get("claim"), "`claim`"),
        steps=steps,
        refused={_step(number): text(why, f"why step {number} was refused") for number, why in refused.items()},
        aside={name: _stored_step(mapping(entry, f"checkpoint {name}")) for name, entry in aside.items()},
        lives=tuple(text(life, "a life") for life in lives),
        beside={plain_name(name): text(value, f"`{name}`") for name, value in beside.items()},
    )


def _step(number: str) -> int:
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{number[:20]!r} is no step")
    return int(number)


def _stored_step(entry: Mapping[str, Any]) -> StoredStep:
    files = mapping(entry.get("files"), "`files`")
    return StoredStep(
        files={plain_name(name): _stored_file(mapping(file, f"file {name}")) for name, file in files.items()},
        health=text(entry.get("health"), "`health`"),
        needs=extents(entry.get("needs"), "`needs`"),
    )


def _stored_file(file: Mapping[str, Any]) -> StoredFile:
    name = text(file.get("object"), "`object`")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name[:60]!r} is no name of an object")
    return StoredFile(
        object=name,
        bytes=whole(file.get("bytes"), "`bytes`"),
        digest=text(file.get("digest"), "`digest`"),
    )
