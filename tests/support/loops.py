"""What scripts keep, and what they are told of."""

from __future__ import annotations

from typing import Any

WORDS = "what the training loop keeps from step to step in "


class Holder:
    """An object of the script's."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def tick(self) -> None:
        self.total = self.total + 1


def names_told(said: str) -> list[str]:
    """The variables that lines name as kept and not saved."""
    return sorted(name for line in said.splitlines() if WORDS in line for name in line.split("`")[1::2])
