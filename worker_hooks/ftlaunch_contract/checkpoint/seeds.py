"""The seeds that a job gives its ranks, and the files that keep them. Standard library only.

A script that draws without a seed of its own, or walks through a set, does something else in every process. The ranks
of all attempts therefore get one seed for what they draw, and one PYTHONHASHSEED. Both are saved with every snapshot,
so that a rank that resumes can compare them with its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files import atomic, untrusted_json
from ftlaunch_contract.files.regular_file import read_regular

NAME = layout.SEED
"""in the run dir, and in a checkpoint directory beside the checkpoints"""
KEY = "seeds"
"""in common.json of a snapshot, and of a checkpoint"""
ENV_SEED = protocol.ENV_SEED
ENV_HASH_SEED = "PYTHONHASHSEED"
HASH_SEED = "0"
"""PYTHONHASHSEED of ranks where the user sets none: the same in all jobs, so that no start can miss it"""
MOST = (1 << 63) - 1


@dataclass(frozen=True)
class Seeds:
    """What a rank was given."""

    job: int | None = None
    """None: no supervisor has given one"""
    hash: str = ""
    """PYTHONHASHSEED when Python began; empty or `random`: every process has its own"""

    @property
    def hash_is_fixed(self) -> bool:
        """Whether another process can have the same order of sets."""
        return self.hash not in ("", "random")

    def entries(self) -> dict[str, dict[str, int | str]]:
        """What common.json says of the seeds; nothing where there are none."""
        known: dict[str, int | str] = {}
        if self.job is not None:
            known["job"] = self.job
        if self.hash_is_fixed:
            known["hash"] = self.hash
        return {KEY: known} if known else {}


def of_environment(environ: Mapping[str, str]) -> Seeds:
    """The seeds of a process that was started with this environment."""
    given = environ.get(ENV_SEED, "")
    return Seeds(int(given) if given.isdecimal() else None, environ.get(ENV_HASH_SEED, ""))


def of_snapshot(common: Mapping[str, Any]) -> Seeds:
    """The seeds of the ranks that saved; what is no seed counts as none."""
    found = common.get(KEY)
    if not isinstance(found, Mapping):
        return Seeds()
    job, hashes = found.get("job"), found.get("hash")
    return Seeds(job if type(job) is int else None, hashes if isinstance(hashes, str) else "")


def read(directory: Path) -> int | None:
    """The job's seed that a directory keeps; None where there is none that can be read."""
    with suppress(OSError, ValueError):
        told = untrusted_json.mapping(untrusted_json.parse(read_regular(directory / NAME)), "it")
        return untrusted_json.whole(told.get("seed"), "`seed`")
    return None


def keep(directory: Path, seed: int) -> None:
    """Have a directory keep the job's seed, unless it does. Raises OSError."""
    if read(directory) != seed:
        atomic.replace_durable(directory / NAME, json.dumps({"seed": seed}).encode())
