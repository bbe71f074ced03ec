"""Reads the names of iterators that a training loop consumes from the bytecode of the loop's function. Pure.

For `for x in zip(job.steps(9), batches()):` these are `zip`, `job.steps` and `batches`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from types import CodeType

_ENDS = ("STORE", "DELETE", "POP", "FOR", "END", "JUMP", "RESUME", "RETURN", "NOP", "YIELD", "RAISE", "SETUP")
_NAMES = ("FAST", "NAME", "GLOBAL", "DEREF")


def source_of(code: CodeType, offset: int) -> list[str]:
    """Return the dotted names in the expression that the innermost `for` around an instruction goes through.

    Args:
        code: code of the function.
        offset: offset of the instruction in bytes, as `frame.f_lasti`.

    Returns:
        An empty list if no `for` is around the instruction.
    """
    instructions = list(dis.get_instructions(code))
    loops = [number for number, instruction in enumerate(instructions) if _is_enclosing_loop(instruction, offset)]
    if not loops:
        return []
    expression: list[dis.Instruction] = []
    for instruction in reversed(instructions[: loops[-1]]):
        if instruction.opname.startswith(_ENDS):
            break
        expression.insert(0, instruction)
    return list(_dotted(expression))


def names_before_loops(code: CodeType, offset: int) -> list[str]:
    """Return the dotted names that a function reads before its outermost `for` around an instruction begins.

    Args:
        code: code of the function.
        offset: offset of the instruction in bytes, as `frame.f_lasti`. If no `for` is around the instruction, the names
            are those that are read before the instruction.
    """
    instructions = list(dis.get_instructions(code))
    loops = [instruction.offset for instruction in instructions if _is_enclosing_loop(instruction, offset)]
    end = min(loops, default=offset)
    return list(_dotted(instruction for instruction in instructions if instruction.offset < end))


def names_in(code: CodeType) -> list[str]:
    """Return all dotted names that a function reads."""
    return list(_dotted(dis.get_instructions(code)))


def _is_enclosing_loop(instruction: dis.Instruction, offset: int) -> bool:
    return instruction.opname == "FOR_ITER" and instruction.offset <= offset < instruction.argval


def _dotted(instructions: Iterable[dis.Instruction]) -> Iterator[str]:
    path = ""
    for instruction in instructions:
        opname = instruction.opname
        argument = instruction.argval
        if opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path += f".{argument}"
            continue
        if path:
            yield path
        path = ""
        if opname.startswith("LOAD") and any(word in _NAMES for word in opname.split("_")):
            *others, path = argument if isinstance(argument, tuple) else (argument,)
            yield from others
    if path:
        yield path
