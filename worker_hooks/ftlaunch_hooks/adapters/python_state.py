"""A glance at Python's global generator: half a microsecond where nothing was drawn since the last one.

`random.getstate()` takes 7 of them, and what it gives takes as long to compare. The words of the Mersenne Twister, and
its place among them, lie in the generator's object behind what every object begins with. Where they do not (another
Python), the states are read every time.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

_WORD = ctypes.sizeof(ctypes.c_uint32)
_SIZE = 625 * _WORD  # the place among the words, and the words


class PythonGlances:
    """At the generator of the module `random`."""

    def __init__(self) -> None:
        self._generator: Any = random.getstate.__self__  # type: ignore[attr-defined]
        self._memory = b""
        self._last: Any = None
        whole = getattr(type(self._generator).__base__, "__basicsize__", 0)
        self._lies_there = whole >= object.__basicsize__ + _SIZE

    def look(self) -> Any:
        """As random.getstate(); the very object that was given before where nothing was drawn since."""
        last = self._last
        if last is not None and self._generator.gauss_next == last[2] and self._read() == self._memory:
            return last
        state, self._last = random.getstate(), None
        if self._lies_there:
            memory, words = self._read(), state[1]
            if memory == b"".join(word.to_bytes(_WORD, sys.byteorder) for word in (words[-1], *words[:-1])):
                self._memory, self._last = memory, state
        return state

    def _read(self) -> bytes:
        return ctypes.string_at(id(self._generator) + object.__basicsize__, _SIZE)
