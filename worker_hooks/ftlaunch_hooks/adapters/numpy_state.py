"""The state of NumPy's global generator, read in a microsecond where nothing was drawn since the last reading.

`numpy.random.get_state()` takes 50 of them. The words of a Mersenne Twister, and its place among them, lie where the
`ctypes` interface of NumPy's bit generators says; the second of two normal numbers, drawn at once, lies elsewhere: a
state that has one is read in full.
"""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType
from typing import Any

from ftlaunch_hooks.adapters.refusal import refuse

_WORDS = 624 * 4  # bytes
_SIZE = _WORDS + ctypes.sizeof(ctypes.c_int)


class GlobalState:
    """Of the NumPy that a process has imported."""

    def __init__(self) -> None:
        self._bits: Any = None  # the bit generator whose memory is known
        self._memory = b""
        self._last: Any = None

    def read(self, numpy: ModuleType) -> Any:
        """What numpy.random.get_state() gives; the very object that was given before where nothing was drawn since.

        Raises AttachError where the script has put a generator of another kind there.
        """
        if not hasattr(numpy.random, "get_bit_generator"):  # before NumPy 1.24, which has a Mersenne Twister
            return numpy.random.get_state()
        bits = numpy.random.get_bit_generator()
        if bits is self._bits and self._last is not None:
            memory = _memory(bits)
            if memory == self._memory:
                return self._last
        if type(bits) is not numpy.random.MT19937:
            refuse(
                f"cannot save NumPy's global random numbers: numpy.random.set_bit_generator() has put a"
                f" {type(bits).__name__} there, and only MT19937 is known here; give the data a generator of its own"
            )
        state = numpy.random.get_state()
        self._bits, self._last = bits, None
        if not state[3]:
            memory = _memory(bits)
            expected = state[1].tobytes() + state[2].to_bytes(_SIZE - _WORDS, sys.byteorder)
            if memory == expected:
                self._memory, self._last = memory, state
        return state


def _memory(bits: Any) -> bytes:
    return ctypes.string_at(bits.ctypes.state_address, _SIZE)
