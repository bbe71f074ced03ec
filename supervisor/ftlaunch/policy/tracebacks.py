"""Finds the last Python traceback in a log, and shortens tracebacks for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch adds the prefix once a process group is up
TRACEBACK = "Traceback (most recent call last):"
_FAULT = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
# For a script that cannot be compiled, Python prints no traceback, only the place of the error.
_SYNTAX = re.compile(
    r'^  File "[^"\n]+", line \d+\n(?: .*\n)*(?:SyntaxError|IndentationError|TabError): .*', re.MULTILINE
)
_NO_FRAME = "<no Python frame>"
_TRACE_LINES = 24  # lines of a shortened trace
_LONGEST_LINE = 1000  # characters: a message may be a tensor, or a whole file
_GROUP = "  + Exception Group "
_MEMBERS = "  +-+-"  # precedes the first exception within a group


def last_traceback(log: str) -> str:
    """Return the last Python traceback of a log, or the last fatal error with its stacks; empty if there is neither.

    A fatal error without a Python frame that follows a traceback does not count: the interpreter was ending because of
    the traceback's exception, and torch's gloo threads abort then.
    """
    log = _RANK_PREFIX.sub("", log)
    fault = max(_FAULT.finditer(log), key=lambda match: match.start(), default=None)
    begin = log.rfind(TRACEBACK)
    if fault is not None and fault.start() > begin and (begin < 0 or _NO_FRAME not in log[fault.start() :]):
        return log[fault.start() :].rstrip()
    if begin < 0:
        syntax = _SYNTAX.findall(log)
        return str(syntax[-1]) if syntax else ""
    lines = log[begin:].splitlines()
    end = 1
    while end < len(lines) and (lines[end].startswith(" ") or not lines[end].strip()):
        end += 1
    while end + 1 < len(lines) and lines[end + 1].startswith(("  ", "\t")):  # a message of several lines
        end += 1
    return "\n".join(lines[: end + 1]).rstrip()


def outermost_of_group(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of a traceback that belong to its outermost exception.

    For an ExceptionGroup these are the lines of the group itself, without the frame that Python draws around the group.
    For any other exception these are all lines.
    """
    begin = next((number for number, line in enumerate(lines) if line.startswith(_GROUP)), None)
    if begin is None:
        return lines
    end = next((number for number, line in enumerate(lines) if line.startswith(_MEMBERS)), len(lines))
    return [TRACEBACK, *(line.removeprefix("  | ") for line in lines[begin + 1 : end])]


def shortened(trace: str) -> str:
    """Return the first and the last lines of a trace, with the number of lines left out; long lines are cut."""
    lines = [_clip_line(line) for line in trace.rstrip().splitlines()]
    if len(lines) <= _TRACE_LINES:
        return "\n".join(lines)
    half = _TRACE_LINES // 2
    return "\n".join([*lines[:half], f"  ... {len(lines) - 2 * half} lines left out ...", *lines[-half:]])


def _clip_line(line: str) -> str:
    over = len(line) - _LONGEST_LINE
    return f"{line[:_LONGEST_LINE]} ... {over} characters left out" if over > 0 else line
