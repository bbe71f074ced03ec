"""A glance at NumPy's global generator: a microsecond where nothing was drawn since the last one.

`numpy.random.get_state()` takes 50 of them. The words of a Mersenne Twister, and its place among them, lie where the
`ctypes` interface of NumPy's bit generators says; the second of two normal numbers, drawn at once, lies elsewhere.
"""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType
from typing import Any

from ftlaunch_hooks.adapters.refusal import refuse

_WORDS = 624 * 4  # bytes
_SIZE = _WORDS + ctypes.sizeof(ctypes.c_int)


def read(numpy: ModuleType) -> Any:
    """What numpy.random.get_state() gives. Raises AttachError where the script has put another kind there."""
    state = numpy.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        refuse(
            f"cannot save NumPy's global random numbers: numpy.random.set_bit_generator() has put a"
            f" {state['bit_generator']} there, and only MT19937 is known here; give the data a generator of its own"
        )
    words = state["state"]
    return "MT19937", words["key"], words["pos"], state["has_gauss"], state["gauss"]


class Glances:
    """At the generator of the NumPy that a process has imported."""

    def __init__(self) -> None:
        self._bits: Any = None  # the bit generator whose memory is known
        self._memory = b""
        self._last: Any = None

    def look(self, numpy: ModuleType) -> Any:
        """As `read`; the very object that was given before where nothing was drawn since. Raises AttachError.

        Not to be saved: that a second normal number lies ready is missed where set_state() has brought it, and nothing
        else, back.
        """
        if not hasattr(numpy.random, "get_bit_generator"):  # before NumPy 1.24
            return read(numpy)
        bits = numpy.random.get_bit_generator()
        if bits is self._bits and self._last is not None and _memory(bits) == self._memory:
            return self._last
        state = read(numpy)
        self._bits, self._last = bits, None
        if not state[3]:
            memory = _memory(bits)
            if memory == state[1].tobytes() + state[2].to_bytes(_SIZE - _WORDS, sys.byteorder):
                self._memory, self._last = memory, state
        return state


def _memory(bits: Any) -> bytes:
    return ctypes.string_at(bits.ctypes.state_address, _SIZE)
