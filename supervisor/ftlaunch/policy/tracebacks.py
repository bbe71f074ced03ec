"""The last Python traceback of a log, shortened for people. Pure."""

from __future__ import annotations

import re

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch's, once a process group is up
TRACEBACK = "Traceback (most recent call last):"
_FAULT = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
# a script that cannot be compiled has no traceback, only the place
_SYNTAX = re.compile(
    r'^  File "[^"\n]+", line \d+\n(?: .*\n)*(?:SyntaxError|IndentationError|TabError): .*', re.MULTILINE
)
_NO_FRAME = "<no Python frame>"
_TRACE_LINES = 24


def last_traceback(log: str) -> str:
    """The last Python traceback (or fatal error with its stacks) in a log; empty when there is none.

    A fatal error without a Python frame, behind a traceback, is the interpreter ending over it (torch's gloo threads
    abort then): the traceback counts.
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
    while end + 1 < len(lines) and lines[end + 1].startswith(("  ", "\t")):  # messages of several lines
        end += 1
    return "\n".join(lines[: end + 1]).rstrip()


def shortened(trace: str) -> str:
    """At most so many lines of a trace as people read: the first and the last ones."""
    lines = trace.rstrip().splitlines()
    if len(lines) <= _TRACE_LINES:
        return "\n".join(lines)
    half = _TRACE_LINES // 2
    return "\n".join([*lines[:half], f"  ... {len(lines) - 2 * half} lines left out ...", *lines[-half:]])
