"""Recognizes loops of steps() that are left before their last step: by `break`, by exhausted data, or by islice().

The generator of steps() only sees that it is closed, and it is closed if the body of the loop raises, too. The
instruction at which the loop's frame stands shows whether the loop was left by `break`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from opcode import opmap
from types import FrameType

from torch import Tensor

from ftlaunch_contract.pages.words import ENDLESS

_LEAVES = tuple(opmap[name] for name in ("POP_TOP", "POP_ITER") if name in opmap)
_YIELDS = tuple(opmap[name] for name in ("YIELD_VALUE", "RESUME") if name in opmap)

Fingerprint = list[tuple[int, int]]


@dataclass(frozen=True)
class EarlyEnd:
    """A loop that was left before its last step."""

    total: int
    """steps that the loop was to make"""
    state: Fingerprint | None
    """fingerprint of the attached modules when the loop was left; None if that moment was not seen"""

    def sentence(self, step: int, kept: str) -> str:
        """Return the sentence about this loop that is logged at the script's end.

        Args:
            step: the last step that was made.
            kept: a clause that says what became of the last step.
        """
        of = f" of {self.total}" if self.total < ENDLESS else ""
        return f"the job ended early at step {step}{of}: its loop of steps() was left before its last step; {kept}"


def is_left_by_break(frame: FrameType | None) -> bool:
    """Return whether the loop that drops its iterator in this frame is left by `break` or `return`.

    An exception leaves the frame at the instruction that has raised; `break` and `return` pop the iterator. A
    generator between the loop and steps() (tqdm's) is closed at its `yield`; then the frame that uses it counts.
    """
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR and _opcode(frame) in _YIELDS:
        frame = frame.f_back
    return frame is not None and _opcode(frame) in _LEAVES


def _opcode(frame: FrameType) -> int:
    return frame.f_code.co_code[frame.f_lasti]


def fingerprint(tensors: Iterable[Tensor]) -> Fingerprint:
    """Return each tensor's address and its number of in-place changes: equal while nothing changes the tensors."""
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]
