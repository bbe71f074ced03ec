"""Which names go from one pass of a training loop into the next: read off the bytecode of the function. Pure.

A name that a pass reads before it has stored it carries a value from the pass before (liveness analysis, as compilers
do it: Kildall 1973).
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
    """Names of one loop."""

    stored: frozenset[str]
    """a pass of the loop may store them"""
    read: frozenset[str]
    """a pass may read them before it has stored them"""
    carried: frozenset[str]
    """one of the loops may read them before it has stored them, and stores them other than as the target of a `for`"""


@dataclass(frozen=True)
class LiveNames:
    """Names of a function at one of its instructions."""

    live: frozenset[str]
    """may be read behind the instruction before they are stored"""
    stored_in_loops: frozenset[str]
    """a pass of a loop around the instruction may store them"""
    targets: frozenset[str]
    """those of `stored_in_loops` that only a `for` stores, with what it takes from its iterator"""
    is_in_loop: bool
    """whether a loop is around the instruction"""
    place: str
    """what the instruction does, and which of those of its kind in the function it is; the same in a script that was
    edited elsewhere, and with another version of Python in most cases"""


@dataclass(frozen=True)
class _Line:
    """One instruction: what it does to names, in this order, and where it may go on."""

    uses: tuple[tuple[str, bool], ...]  # name, whether it is stored (or deleted)
    next: tuple[int, ...]
    is_target: bool  # it stores what a `for` has taken from its iterator


@functools.lru_cache(maxsize=64)  # looks come again and again to the same few functions, and each takes milliseconds
def loop_names(code: CodeType, offset: int) -> LoopNames:
    """Of the innermost and all outer loops that the instruction at `offset` is in; nothing where it is in none.

    offset: in bytes, as `frame.f_lasti`. Exceptions are taken to leave the loop.
    """
    lines = _lines(code)
    at = _place_at(lines, offset)
    loop = _reached(at, {place: line.next for place, line in lines.items()})
    loop &= _reached(at, _reversed(lines))
    stores = {place: [name for name, is_store in lines[place].uses if is_store] for place in loop}
    stored = {name for names in stores.values() for name in names}
    targets = stored - {name for place, names in stores.items() for name in names if not lines[place].is_target}
    live, heads = _live(lines, loop), _heads(lines, loop, at)
    carried = {
        name
        for head, last in heads.items()
        for place in loop
        if head <= place <= last
        for name in stores[place]
        if name in live[head] and name not in targets
    }
    return LoopNames(frozenset(stored), live.get(max(heads, default=at), frozenset()), frozenset(carried))


_live_known: dict[tuple[int, int], tuple[CodeType, LiveNames]] = {}  # by id: to hash a code object takes long


def live_names(code: CodeType, offset: int) -> LiveNames:
    """Return what a function reads behind the instruction at `offset`, which is under way; once for each place.

    offset: in bytes, as `frame.f_lasti`. Exceptions are taken to leave the function.
    """
    known = _live_known.get((id(code), offset))
    if known is None or known[0] is not code:
        known = _live_known[id(code), offset] = code, _live_names(code, offset)
    return known[1]


def _live_names(code: CodeType, offset: int) -> LiveNames:
    lines = _lines(code)
    at = _place_at(lines, offset)
    forward = {place: line.next for place, line in lines.items()}
    ahead = _reached(at, forward)
    loop = ahead & _reached(at, _reversed(lines))
    live = _live(lines, ahead)
    stores = [(name, lines[place].is_target) for place in loop for name, is_store in lines[place].uses if is_store]
    stored = frozenset(name for name, _ in stores)
    return LiveNames(
        live=frozenset[str]().union(*(live[place] for place in lines[at].next)),
        stored_in_loops=stored,
        targets=stored - {name for name, is_target in stores if not is_target},
        is_in_loop=bool(loop),
        place=_place_in(code, at),
    )


def _place_in(code: CodeType, at: int) -> str:
    before = [one.opname for one in dis.get_instructions(code) if one.offset <= at]
    return f"{before[-1]}{before[:-1].count(before[-1])}"


def _place_at(lines: Mapping[int, _Line], offset: int) -> int:
    return max((place for place in lines if place <= offset), default=0)


def _lines(code: CodeType) -> dict[int, _Line]:
    found, after_for = {}, False
    instructions = list(dis.get_instructions(code))
    ends = [instruction.offset for instruction in instructions[1:]]
    for number, one in enumerate(instructions):
        following = ends[number : number + 1] if one.opname not in _NO_NEXT else []
        jumps = [one.argval] if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs else []
        uses = tuple(_uses(one))
        found[one.offset] = _Line(uses, (*following, *jumps), after_for and bool(uses) and uses[0][1])
        # `for a, b in c` unpacks, and stores twice; of `for _, _, a in c` Python 3.13 drops what is stored over at once
        goes_on = one.opname.startswith(("UNPACK", "POP_TOP")) or (bool(uses) and all(is_store for _, is_store in uses))
        after_for = one.opname == "FOR_ITER" or (after_for and goes_on)
    return found


def _uses(one: dis.Instruction) -> Iterator[tuple[str, bool]]:
    """Names that an instruction reads and stores; from Python 3.13 on one may do two such things."""
    words = one.opname.split("_")
    verbs = [word for word in words if word in ("LOAD", "STORE", "DELETE")]
    if not verbs or not any(word in _KINDS for word in words):
        return
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    for verb, name in zip(verbs, names, strict=False):
        yield str(name), verb != "LOAD"


def _reversed(lines: Mapping[int, _Line]) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {place: [] for place in lines}
    for place, line in lines.items():
        for following in line.next:
            before[following].append(place)
    return before


def _reached(start: int, ways: Mapping[int, tuple[int, ...] | list[int]]) -> set[int]:
    """Places that can be reached from `start` by a step or more."""
    found: set[int] = set()
    ahead = list(ways.get(start, ()))
    while ahead:
        place = ahead.pop()
        if place not in found:
            found.add(place)
            ahead.extend(ways[place])
    return found


def _heads(lines: Mapping[int, _Line], loop: set[int], at: int) -> dict[int, int]:
    """Of each loop around `at` where a pass begins, and its last place.

    The innermost begins last: a script that is started again comes to its head first.
    """
    found: dict[int, int] = {}
    for place in sorted(loop):
        found |= {to: place for to in lines[place].next if to <= at <= place}
    return found


def _live(lines: Mapping[int, _Line], loop: set[int]) -> dict[int, frozenset[str]]:
    """place -> names that are read from there on, within the loop, before they are stored."""
    live: dict[int, frozenset[str]] = {place: frozenset() for place in loop}
    changed = True
    while changed:
        changed = False
        for place in sorted(loop, reverse=True):
            line = lines[place]
            names = frozenset[str]().union(*(live[following] for following in line.next if following in loop))
            for name, is_store in reversed(line.uses):
                names = names - {name} if is_store else names | {name}
            if names != live[place]:
                live[place], changed = names, True
    return live
