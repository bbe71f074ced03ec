"""Finds the names that carry values from one pass of a training loop into the next, in the function's bytecode. Pure.

A name that a pass reads before the pass has stored the name carries a value from the pass before. This is liveness
analysis, as compilers do it (Kildall 1973). A "place" is the offset of an instruction in bytes, as `frame.f_lasti`.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType

_NO_NEXT = (
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
)  # fmt: skip
_KINDS = ("FAST", "NAME", "GLOBAL", "DEREF", "CLOSURE", "CLASSDEREF")


@dataclass(frozen=True)
class LoopNames:
    """The names of the loops around an instruction."""

    stored: frozenset[str]
    """names that a pass of any of the loops may store"""
    read: frozenset[str]
    """names that a pass of the innermost loop may read before the pass has stored them"""
    carried: frozenset[str]
    """names that a pass of a loop may read before the pass stores them, other than as the target of a `for`"""


@dataclass(frozen=True)
class LiveNames:
    """The names of a function at one of its instructions."""

    live: frozenset[str]
    """names that may be read after the instruction before they are stored"""
    stored_in_loops: frozenset[str]
    """names that a pass of a loop around the instruction may store"""
    targets: frozenset[str]
    """names of `stored_in_loops` that are stored only as targets of a `for`"""
    is_in_loop: bool
    """whether a loop is around the instruction"""
    place: str
    """kind of the instruction, and its number among the instructions of that kind in the function; stays the same if
    the script is edited elsewhere, and mostly with another version of Python"""


@dataclass(frozen=True)
class _Instruction:
    """The effects of one instruction on names, and the instructions that may follow."""

    uses: tuple[tuple[str, bool], ...]
    """names in the order of use, and whether each is stored (or deleted) and not read"""
    next: tuple[int, ...]
    """places of the instructions that may follow"""
    is_target: bool
    """whether the instruction stores an element that a `for` has taken from its iterator"""


@functools.lru_cache(maxsize=64)  # the same few functions are asked for again and again, and each takes milliseconds
def loop_names(code: CodeType, offset: int) -> LoopNames:
    """Return the names of the innermost and all outer loops around an instruction.

    An exception is assumed to leave the loop.

    Args:
        code: code of the function.
        offset: offset of the instruction in bytes, as `frame.f_lasti`.

    Returns:
        Empty sets if no loop is around the instruction.
    """
    instructions = _instructions(code)
    current = _place_at(instructions, offset)
    loop = _reached(current, {place: instruction.next for place, instruction in instructions.items()})
    loop &= _reached(current, _predecessors(instructions))
    stores = {place: [name for name, is_store in instructions[place].uses if is_store] for place in loop}
    stored = {name for names in stores.values() for name in names}
    stored_otherwise = {name for place, names in stores.items() for name in names if not instructions[place].is_target}
    targets = stored - stored_otherwise
    live = _live(instructions, loop)
    heads = _heads(instructions, loop, current)
    carried = set[str]()
    for head, last in heads.items():
        stored_in_loop = {name for place in loop if head <= place <= last for name in stores[place]}
        carried |= {name for name in stored_in_loop - targets if name in live[head]}
    return LoopNames(
        stored=frozenset(stored),
        read=live.get(max(heads, default=current), frozenset()),
        carried=frozenset(carried),
    )


_known_live_names: dict[tuple[int, int], tuple[CodeType, LiveNames]] = {}
"""by id and offset, because hashing a code object takes long"""


def live_names(code: CodeType, offset: int) -> LiveNames:
    """Return the names of a function at the instruction under way. The result is remembered for the process.

    An exception is assumed to leave the function.

    Args:
        code: code of the function.
        offset: offset of the instruction in bytes, as `frame.f_lasti`.
    """
    known = _known_live_names.get((id(code), offset))
    if known is None or known[0] is not code:
        known = _known_live_names[id(code), offset] = code, _live_names(code, offset)
    return known[1]


def _live_names(code: CodeType, offset: int) -> LiveNames:
    instructions = _instructions(code)
    current = _place_at(instructions, offset)
    ahead = _reached(current, {place: instruction.next for place, instruction in instructions.items()})
    loop = ahead & _reached(current, _predecessors(instructions))
    live = _live(instructions, ahead)
    stores = [
        (name, instructions[place].is_target)
        for place in loop
        for name, is_store in instructions[place].uses
        if is_store
    ]
    stored = frozenset(name for name, _ in stores)
    return LiveNames(
        live=frozenset[str]().union(*(live[place] for place in instructions[current].next)),
        stored_in_loops=stored,
        targets=stored - {name for name, is_target in stores if not is_target},
        is_in_loop=bool(loop),
        place=_describe_place(code, current),
    )


def _describe_place(code: CodeType, place: int) -> str:
    """Return the kind of the instruction at a place, and its number among the instructions of that kind."""
    opnames = [instruction.opname for instruction in dis.get_instructions(code) if instruction.offset <= place]
    return f"{opnames[-1]}{opnames[:-1].count(opnames[-1])}"


def _place_at(instructions: Mapping[int, _Instruction], offset: int) -> int:
    return max((place for place in instructions if place <= offset), default=0)


def _instructions(code: CodeType) -> dict[int, _Instruction]:
    """Return the instructions of a function by place."""
    found = {}
    is_after_for = False
    decoded = list(dis.get_instructions(code))
    ends = [instruction.offset for instruction in decoded[1:]]
    for number, instruction in enumerate(decoded):
        opname = instruction.opname
        following = ends[number : number + 1] if opname not in _NO_NEXT else []
        is_jump = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        jumps = [instruction.argval] if is_jump else []
        uses = tuple(_uses(instruction))
        found[instruction.offset] = _Instruction(
            uses=uses, next=(*following, *jumps), is_target=is_after_for and bool(uses) and uses[0][1]
        )
        # `for a, b in c` unpacks and stores twice. Of `for _, _, a in c` Python 3.13 drops the values that would be
        # stored over at once.
        only_stores = bool(uses) and all(is_store for _, is_store in uses)
        continues_target = opname.startswith(("UNPACK", "POP_TOP")) or only_stores
        is_after_for = opname == "FOR_ITER" or (is_after_for and continues_target)
    return found


def _uses(instruction: dis.Instruction) -> Iterator[tuple[str, bool]]:
    """Yield the names that an instruction reads or stores. From Python 3.13 on an instruction may use two names."""
    words = instruction.opname.split("_")
    verbs = [word for word in words if word in ("LOAD", "STORE", "DELETE")]
    if not verbs or not any(word in _KINDS for word in words):
        return
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    for verb, name in zip(verbs, names, strict=False):
        yield str(name), verb != "LOAD"


def _predecessors(instructions: Mapping[int, _Instruction]) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {place: [] for place in instructions}
    for place, instruction in instructions.items():
        for following in instruction.next:
            before[following].append(place)
    return before


def _reached(start: int, edges: Mapping[int, tuple[int, ...] | list[int]]) -> set[int]:
    """Return the places that can be reached from `start` by one edge or more."""
    found: set[int] = set()
    ahead = list(edges.get(start, ()))
    while ahead:
        place = ahead.pop()
        if place not in found:
            found.add(place)
            ahead.extend(edges[place])
    return found


def _heads(instructions: Mapping[int, _Instruction], loop: set[int], current: int) -> dict[int, int]:
    """Return the last place of each loop around `current`, by the loop's head, the place where a pass begins.

    The innermost loop has the last head.
    """
    found: dict[int, int] = {}
    for place in sorted(loop):
        found |= {head: place for head in instructions[place].next if head <= current <= place}
    return found


def _live(instructions: Mapping[int, _Instruction], loop: set[int]) -> dict[int, frozenset[str]]:
    """Return the names that are read within the loop, from a place on, before they are stored; by place."""
    live: dict[int, frozenset[str]] = {place: frozenset() for place in loop}
    has_changed = True
    while has_changed:
        has_changed = False
        for place in sorted(loop, reverse=True):
            instruction = instructions[place]
            names = frozenset[str]().union(*(live[following] for following in instruction.next if following in loop))
            for name, is_store in reversed(instruction.uses):
                names = names - {name} if is_store else names | {name}
            if names != live[place]:
                live[place] = names
                has_changed = True
    return live
