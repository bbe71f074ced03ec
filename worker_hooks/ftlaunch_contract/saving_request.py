"""What a script asks for about saving, and which settings of the job override the script.

A script asks through the calls of the library that it was written for (`save_storage_interval`,
`keep_checkpoint_max`). A setting that was given for the job (an option, a key of the spec, a FTLAUNCH_* variable) wins
over the script; a default does not. The supervisor passes the given settings in `protocol.ENV_GIVEN`. All functions
are pure.
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
"""settings that a script may ask for -> the variable that gives the setting where there is no supervisor"""


@dataclass(frozen=True)
class SavingRequest:
    """What a script asks for. None in a field: the script asks for nothing, and the job's own setting holds."""

    memory_steps: int | None = None
    """steps between snapshots in memory"""
    steps: int | None = None
    """steps between checkpoints: the steps that are multiples of this number are saved"""
    ahead: int = 0
    """by how many steps the script's own count, whose multiples are meant, is ahead of the job's"""
    seconds: float | None = None
    """seconds between checkpoints"""
    keep: int | None = None
    """number of checkpoints to keep, the newest ones"""

    def __str__(self) -> str:
        """Describe the request in words."""
        words = {
            "checkpoints every {} steps": self.steps,
            "checkpoints every {} s": self.seconds,
            "{} checkpoints to keep": self.keep,
        }
        parts = [template.format(value) for template, value in words.items() if value is not None]
        return " and ".join(parts) or "nothing"

    def against(self, given: Mapping[str, str]) -> tuple[SavingRequest, dict[str, str]]:
        """Drop what the settings of the job override.

        Returns:
            What is left of the request, and those of the settings `given` that contradict the request.
        """
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
    """Return the settings that this rank's job was given: name -> text as a person would write it, `--keep 7`."""
    if (given := environ.get(protocol.ENV_GIVEN)) is not None:
        pairs = (word.partition("=") for word in given.split())
        return {name: f"--{name.replace('_', '-')} {value}" for name, _, value in pairs}
    return {name: f"{variable}={environ[variable]}" for name, variable in VARIABLES.items() if variable in environ}
