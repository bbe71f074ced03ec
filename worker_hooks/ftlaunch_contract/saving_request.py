"""What a script asks for about saving, and which settings the job was given, so that they hold in the script's place.

A script asks by the calls of the library that it comes from (`save_storage_interval`, `keep_checkpoint_max`). What was
given for the job (an option, a key of its spec, a FTLAUNCH_* variable) wins; a default does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ftlaunch_contract import protocol

VARIABLES = {
    "memory_interval": protocol.ENV_MEMORY_INTERVAL,
    "storage_interval": protocol.ENV_STORAGE_INTERVAL,
    "keep": protocol.ENV_KEEP,
}
"""the settings in whose place a script may ask, and what they are called where there is no supervisor"""


@dataclass(frozen=True)
class SavingRequest:
    """What a script asks for. None: it asks for nothing, and the job's own setting holds."""

    memory_steps: int | None = None
    """between snapshots in memory"""
    steps: int | None = None
    """between checkpoints: exactly the steps that are multiples of it are saved"""
    ahead: int = 0
    """by how much the script's count of steps, whose multiples are meant, is ahead of the job's"""
    seconds: float | None = None
    """between checkpoints"""
    keep: int | None = None
    """checkpoints, the newest"""

    def __str__(self) -> str:
        """What is asked for, in words."""
        words = {
            "checkpoints every {} steps": self.steps,
            "checkpoints every {} s": self.seconds,
            "{} checkpoints to keep": self.keep,
        }
        return " and ".join(said.format(value) for said, value in words.items() if value is not None) or "nothing"

    def against(self, given: Mapping[str, str]) -> tuple[SavingRequest, dict[str, str]]:
        """Return what is left of the request where the settings `given` hold, and those of them that it contradicts."""
        left = self
        if "memory_interval" in given:
            left = replace(left, memory_steps=None)
        if "storage_interval" in given:
            left = replace(left, steps=None, seconds=None)
        if "keep" in given:
            left = replace(left, keep=None)
        dropped = {
            "memory_interval": left.memory_steps != self.memory_steps,
            "storage_interval": (left.steps, left.seconds) != (self.steps, self.seconds),
            "keep": left.keep != self.keep,
        }
        return left, {name: given[name] for name, is_dropped in dropped.items() if is_dropped}


def write_given(given: Mapping[str, str]) -> str:
    """Return the value of ENV_GIVEN for the settings that a job was given."""
    return " ".join(f"{name}={value}" for name, value in given.items())


def read_given(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that this rank's job was given: name -> as a person would write it, `--keep 7`."""
    if (said := environ.get(protocol.ENV_GIVEN)) is not None:
        pairs = (word.partition("=") for word in said.split())
        return {name: f"--{name.replace('_', '-')} {value}" for name, _, value in pairs}
    return {name: f"{variable}={environ[variable]}" for name, variable in VARIABLES.items() if variable in environ}
