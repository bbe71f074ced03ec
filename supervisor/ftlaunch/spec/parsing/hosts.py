"""Parses hosts: a list on the command line, a file in the form of MPI or DeepSpeed, the program that reaches them.

Everything is pure, and raises RefusedError.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ftlaunch.spec.errors import RefusedError, shown
from ftlaunch.spec.parsers import text, whole

MOST_HOSTS = 4096
_NAME = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*"  # without a dash first, an option for ssh
_HOST = re.compile(rf"(?P<name>{_NAME})(?::(?P<slots>[^:\s]*))?", re.ASCII)
_SLOTS = re.compile(r"slots\s*=\s*(\S+)", re.ASCII)


class Host(NamedTuple):
    """A host, and its number of ranks."""

    name: str
    """NAME or USER@NAME, as ssh takes it"""
    slots: int | None = None
    """number of ranks; None if none was given"""

    @property
    def address(self) -> str:
        """The name without the user."""
        return self.name.rpartition("@")[2]


def host_list(raw: object) -> tuple[Host, ...]:
    """Parse a list such as `a,b,user@c`, or `a:8,b:8` with the ranks of each host."""
    return _checked(_host(part.strip()) for part in text(raw).split(","))


def host_file(content: str) -> tuple[Host, ...]:
    """Parse the text of a file with one host a line, as `host`, `host:8` or `host slots=8`, and comments after #."""
    lines = [line.partition("#")[0].strip() for line in content.splitlines()]
    return _checked(_line(line) for line in lines if line)


def ssh_command(raw: object) -> tuple[str, ...]:
    """Parse a program and its options, quoted as for a shell."""
    try:
        words = tuple(shlex.split(text(raw)))
    except ValueError:
        raise RefusedError from None
    if not words:
        raise RefusedError
    return words


def _line(line: str) -> Host:
    """Parse a line of a host file."""
    name, *more = line.split(None, 1)
    host = _host(name)
    if not more:
        return host
    found = _SLOTS.fullmatch(more[0])
    if found is None or host.slots is not None:
        raise RefusedError("a line is `HOST`, `HOST:RANKS` or `HOST slots=RANKS`", given=line)
    return Host(host.name, _slots(found[1], line))


def _host(given: str) -> Host:
    """Parse a host with or without `:RANKS`."""
    found = _HOST.fullmatch(given)
    if found is None:
        raise RefusedError("a host is NAME or USER@NAME, with :RANKS or without", given=given)
    return Host(found["name"], None if found["slots"] is None else _slots(found["slots"], given))


def _slots(given: str, host: str) -> int:
    """Parse the number of ranks of a host."""
    try:
        return whole(1)(given)
    except RefusedError:
        raise RefusedError("the ranks of a host are a whole number, 1 or more", given=host) from None


def _checked(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return the hosts, after checking that there are some, not too many, and each once."""
    found = tuple(hosts)
    if not found:
        raise RefusedError("it names no host")
    if len(found) > MOST_HOSTS:
        raise RefusedError(f"it names {len(found)} hosts, and {MOST_HOSTS} are the most allowed")
    name, times = Counter(host.name for host in found).most_common(1)[0]
    if times > 1:
        raise RefusedError(
            f"{shown(name)} is named {times} times, and a host has one agent; name it once, with all ranks"
        )
    return found
