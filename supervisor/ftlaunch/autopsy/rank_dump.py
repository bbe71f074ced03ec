"""The dump of one rank: what an autopsy has collected, as the rank's files say, and simple conclusions. Pure.

`client.read_dump` reads the files. What could not be collected is empty, or None, and counts as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.autopsy import flight_recorder as flight
from ftlaunch.autopsy import stacks
from ftlaunch.autopsy.flight_recorder import Collective, FlightRecord
from ftlaunch.autopsy.stacks import Stack
from ftlaunch_contract.files import untrusted_json

BUSY = 0.5  # processors: a thread that uses more does not wait
_FUTEX = re.compile(r"futex")
_ACQUIRES_LOCK = re.compile(r"\bwith\b.*(?:lock|mutex|cond|sem)|\.acquire\(", re.IGNORECASE)


@dataclass(frozen=True)
class Child:
    """A descendant of a rank's process."""

    pid: int
    name: str
    state: str  # of the main thread: R, S, D, T, as in /proc
    stack: str = ""  # in the format of faulthandler; empty if the process showed none


@dataclass(frozen=True)
class RankDump:
    """What was collected of one rank."""

    rank: int
    stack: str = ""  # of all threads, in the format of faulthandler
    state: str = ""  # of the main thread: R, S, D, T, as in /proc
    system_call: str = ""  # name of the system call that the main thread is in
    file: str = ""  # path of the file that the system call is about
    channel: str = ""  # function of the kernel in which the main thread waits
    in_sleep: bool = False  # the system call only lets time pass
    busy: float = 0.0  # processors that the main thread uses, or would use on an idle machine
    stopped: bool = False  # by a signal, or by a debugger
    lock_held: bool | None = None  # some thread keeps the interpreter's lock; None: not known
    children: tuple[Child, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)  # "path:line" -> the source line's text
    flight: FlightRecord | None = None

    @property
    def main(self) -> Stack | None:
        """The main thread's stack; None if the thread shows no frame."""
        return stacks.main_thread(self.stack)

    @property
    def waiting(self) -> bool | None:
        """Whether the main thread waits for other ranks; None if unknown because the rank did not answer."""
        main = self.main
        if main is None:
            return False if self.stack.strip() else None
        return main.wait in stacks.PEERS or (not main.wait and self._in_collective)

    @property
    def pending(self) -> Collective | None:
        """The oldest collective that the rank has entered and that is not over; None if there is none or unknown."""
        return None if self.flight is None else self.flight.pending

    @property
    def sleeps(self) -> bool:
        """Whether the main thread waits for a time to pass."""
        return self.in_sleep or "nanosleep" in self.system_call + self.channel

    @property
    def _in_collective(self) -> bool:
        """Whether the main thread waits in C for a collective: in a handle's wait(), or for the device."""
        if self.pending is None or self.lock_held or self.wants_lock or self.stopped:
            return False
        others = stacks.threads(self.stack)[:-1]
        idle = not self.sleeps and not self.file
        return idle and self.busy < BUSY and not any(thread.wait == "collective" for thread in others)

    @property
    def wants_lock(self) -> bool:
        """Whether the main thread waits in a line of the job's own code that takes a lock."""
        main = self.main
        if main is None or main.own != main.frames[0] or not _FUTEX.search(self.system_call + self.channel):
            return False
        return bool(_ACQUIRES_LOCK.search(self.sources.get(f"{main.own.path}:{main.own.line}", "")))


def read(rank: int, stack: str, facts: Mapping[str, Any], recorder: Mapping[str, Any] | None) -> RankDump:
    """Return the dump of a rank from the contents of its files.

    Args:
        rank: the rank.
        stack: text of rank_<r>.stack.txt without the stacks of children.
        facts: object of rank_<r>.proc.json; empty if there is none.
        recorder: object of rank_<r>.flight.json; None if there is none.

    Raises:
        ValueError: a field has another type than an autopsy writes; the message names the field.
    """
    threads = untrusted_json.mappings(facts.get("threads", []), "`threads`")
    main: Mapping[str, Any] = next((thread for thread in threads if thread.get("tid") == facts.get("pid")), {})
    children = tuple(
        Child(
            pid=untrusted_json.whole(child.get("pid", 0), "`pid` of a child"),
            name=_text(child, "comm"),
            state=_text(child, "state"),
            stack=_text(child, "stack"),
        )
        for child in untrusted_json.mappings(facts.get("children", []), "`children`")
    )
    sources = untrusted_json.mapping(facts.get("sources", {}), "`sources`")
    lock_held = facts.get("lock_held")
    busy = main.get("busy", 0.0)
    if not isinstance(busy, int | float):
        raise ValueError("`busy` is not a number")
    if lock_held is not None and not isinstance(lock_held, bool):
        raise ValueError("`lock_held` is not true, false or null")
    return RankDump(
        rank=rank,
        stack=stack,
        state=_text(main, "state"),
        system_call=_text(main, "syscall"),
        file=_text(main, "file"),
        channel=_text(main, "wchan"),
        in_sleep=bool(main.get("sleeps")),
        busy=busy,
        stopped=_text(main, "state") in ("T", "t"),
        lock_held=lock_held,
        children=children,
        sources={place: _text(sources, place) for place in sources},
        flight=None if recorder is None else flight.read(recorder),
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is text, empty if there is none. Raises ValueError."""
    return untrusted_json.text(fields.get(name, ""), f"`{name}`")
