"""The seeds that a job gives its ranks, and the files that keep them. Standard library only.

A script that draws random numbers without a seed of its own, or iterates over a set, does something else in every
process. The ranks of all attempts therefore get one seed for what they draw, and one PYTHONHASHSEED. Both are saved
with every snapshot, so that a rank that resumes can compare them with its own.
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
"""name of the file, in the run dir and in a checkpoint directory"""
KEY = "seeds"
"""key of the seeds in common.json of a snapshot and of a checkpoint"""
ENV_SEED = protocol.ENV_SEED
ENV_HASH_SEED = "PYTHONHASHSEED"
HASH_SEED = "0"
"""PYTHONHASHSEED of ranks where the user sets none: one value for all jobs, so that no start can miss it"""
MOST = (1 << 63) - 1


@dataclass(frozen=True)
class Seeds:
    """The seeds that a rank was given."""

    job: int | None = None
    """the job's seed; None: no supervisor has given one"""
    hash: str = ""
    """PYTHONHASHSEED when Python began; empty or `random`: every process has its own"""

    @property
    def hash_is_fixed(self) -> bool:
        """Whether another process can iterate over sets in the same order."""
        return self.hash not in ("", "random")

    def entries(self) -> dict[str, dict[str, int | str]]:
        """Return the entry of common.json; empty where there are no seeds."""
        known: dict[str, int | str] = {}
        if self.job is not None:
            known["job"] = self.job
        if self.hash_is_fixed:
            known["hash"] = self.hash
        return {KEY: known} if known else {}


def of_environment(environ: Mapping[str, str]) -> Seeds:
    """Return the seeds of a process that was started with this environment."""
    given = environ.get(ENV_SEED, "")
    return Seeds(job=int(given) if given.isdecimal() else None, hash=environ.get(ENV_HASH_SEED, ""))


def of_snapshot(common: Mapping[str, Any]) -> Seeds:
    """Return the seeds of the ranks that saved a snapshot. A malformed seed counts as none."""
    found = common.get(KEY)
    if not isinstance(found, Mapping):
        return Seeds()
    job = found.get("job")
    hash_seed = found.get("hash")
    return Seeds(
        job=job if type(job) is int else None,
        hash=hash_seed if isinstance(hash_seed, str) else "",
    )


def read(directory: Path) -> int | None:
    """Return the job's seed that a directory keeps; None where no seed can be read."""
    with suppress(OSError, ValueError):
        content = untrusted_json.mapping(untrusted_json.parse(read_regular(directory / NAME)), "it")
        return untrusted_json.whole(content.get("seed"), "`seed`")
    return None


def keep(directory: Path, seed: int) -> None:
    """Write the job's seed into a directory, unless it is there already. Raises OSError."""
    if read(directory) != seed:
        atomic.replace_durable(directory / NAME, json.dumps({"seed": seed}).encode())
