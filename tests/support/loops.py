"""An object with state for training loops, and a reader of the lines about variables that are not saved."""

from __future__ import annotations

from typing import Any

WORDS = "what the training loop keeps from step to step in "


class Holder:
    """An object of a script, with arbitrary attributes as its state."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def tick(self) -> None:
        self.total = self.total + 1


def reported_names(output: str) -> list[str]:
    """Return the variables that output lines name as kept by the loop and not saved."""
    return sorted(name for line in output.splitlines() if WORDS in line for name in line.split("`")[1::2])
