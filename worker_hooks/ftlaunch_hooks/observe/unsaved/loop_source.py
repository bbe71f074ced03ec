"""What a training loop takes its passes from: read off the bytecode of the function. Pure.

`for x in zip(job.steps(9), batches()):` takes them from `job.steps` and `batches`, called or not.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from types import CodeType

_ENDS = ("STORE", "DELETE", "POP", "FOR", "END", "JUMP", "RESUME", "RETURN", "NOP", "YIELD", "RAISE", "SETUP")
_NAMES = ("FAST", "NAME", "GLOBAL", "DEREF")


def source_of(code: CodeType, offset: int) -> list[str]:
    """The names in the expression that the innermost `for` around `offset` goes through, dotted; [] without a `for`.

    offset: in bytes, as `frame.f_lasti`.
    """
    instructions = list(dis.get_instructions(code))
    around = [
        number
        for number, one in enumerate(instructions)
        if one.opname == "FOR_ITER" and one.offset <= offset < one.argval
    ]
    if not around:
        return []
    expression: list[dis.Instruction] = []
    for one in reversed(instructions[: around[-1]]):
        if one.opname.startswith(_ENDS):
            break
        expression.insert(0, one)
    return list(_dotted(expression))


def names_before_loops(code: CodeType, offset: int) -> list[str]:
    """The names that a function reads before its outermost `for` around `offset` begins, dotted.

    offset: in bytes, as `frame.f_lasti`. Without a `for` around it: those that are read before `offset`.
    """
    instructions = list(dis.get_instructions(code))
    loops = [one.offset for one in instructions if one.opname == "FOR_ITER" and one.offset <= offset < one.argval]
    end = min(loops, default=offset)
    return list(_dotted(one for one in instructions if one.offset < end))


def names_in(code: CodeType) -> list[str]:
    """All names that a function reads, dotted."""
    return list(_dotted(dis.get_instructions(code)))


def _dotted(instructions: Iterable[dis.Instruction]) -> Iterator[str]:
    path = ""
    for one in instructions:
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path += f".{one.argval}"
            continue
        if path:
            yield path
        path = ""
        if one.opname.startswith("LOAD") and any(word in _NAMES for word in one.opname.split("_")):
            *others, path = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            yield from others
    if path:
        yield path
