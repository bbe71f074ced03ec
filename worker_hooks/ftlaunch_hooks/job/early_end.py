"""A loop of steps() that is left before its last step: by `break`, by data that run out, or by islice().

Its generator sees no more of that than that it is closed, as it is where the body of the loop raises. A loop that is
left by `break` says so by the instruction at which its frame stands.
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
    """How a loop was left."""

    total: int
    """steps that it was to make"""
    state: Fingerprint | None
    """of the attached modules when it was left; None where that was not seen"""

    def sentence(self, step: int, kept: str) -> str:
        """What is said of it at the script's end. kept: what became of the last step, a clause."""
        of = f" of {self.total}" if self.total < ENDLESS else ""
        return f"the job ended early at step {step}{of}: its loop of steps() was left before its last step; {kept}"


def is_left_by_break(frame: FrameType | None) -> bool:
    """Return whether the loop that drops its iterator in this frame is left by `break` or `return`.

    An exception leaves the frame at the instruction that has raised; `break` and `return` pop the iterator. A
    generator between the loop and steps() (tqdm's) is closed where it has yielded: then the frame behind it counts.
    """
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR and _opcode(frame) in _YIELDS:
        frame = frame.f_back
    return frame is not None and _opcode(frame) in _LEAVES


def _opcode(frame: FrameType) -> int:
    return frame.f_code.co_code[frame.f_lasti]


def fingerprint(tensors: Iterable[Tensor]) -> Fingerprint:
    """Return where tensors lie, and how often each was changed in place: equal while nobody changes them."""
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]
