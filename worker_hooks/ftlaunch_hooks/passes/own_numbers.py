"""Gives a sampler or a stream of data random numbers of its own, apart from those that training draws.

Training and data draw from the process's generators by turns. What a sampler draws there depends on every step before,
and cannot be drawn again without making those steps again. With numbers of its own a sampler gives the same order in a
resumed run, whatever training has drawn in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ftlaunch_hooks.state.random_numbers import shared
from ftlaunch_hooks.state.random_numbers.shared import Raw, State

_Result = TypeVar("_Result")


class OwnNumbers:
    """A state of the process's generators that is in force only within `run`."""

    def __init__(self, seed: int) -> None:
        """Let the numbers begin from a seed of 64 bits."""
        self._seed = seed
        self._raw: Raw | None = None

    def run(self, call: Callable[[], _Result]) -> _Result:
        """Call `call` and return its result.

        What it draws comes from these numbers; the process's generators do not move.
        """
        outside = shared.read_raw()
        self._enter()
        try:
            return call()
        finally:
            self._raw = shared.read_raw()
            shared.put_back_raw(outside)

    def _enter(self) -> None:
        if self._raw is None:
            shared.seed_all(self._seed)
        else:
            shared.put_back_raw(self._raw)

    def state(self) -> State | None:
        """Return where the numbers are, in a form that can be saved; None if none was drawn yet."""
        return None if self._raw is None else shared.to_save(self._raw)

    def go_to(self, state: State | None) -> None:
        """Go on from a result of `state`."""
        outside = shared.read_raw()
        if state is None:
            self._raw = None
            return
        shared.put_back(state)
        self._raw = shared.read_raw()
        shared.put_back_raw(outside)
