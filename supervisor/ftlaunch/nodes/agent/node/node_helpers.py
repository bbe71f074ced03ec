"""The helper processes of a node: its saver, its fork server, and what collects an autopsy; asked by the head."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.autopsy.client import Collect, DumpCollector
from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.engine.event_loop import EventLoop

_AGAIN_SECONDS = 1.0
"""between two tries to start a saver"""
_WITHOUT_SECONDS = 5.0
"""without a saver, as none can be started, after which what it is asked for fails"""
SlotDirs = Callable[[Mapping[str, int]], dict[str, str]]
Request = dict[str, Any]


class NodeHelpers:
    """Of one agent."""

    def __init__(
        self,
        loop: EventLoop[Any],
        start_saver: Callable[[], SaverLink],
        collect: Collect,
        may_begin: Callable[[float], bool],
        tell: Callable[..., None],
    ) -> None:
        """Raises OSError where the saver cannot be started. tell: sends a message of `messages.UP`."""
        self._loop, self._start_saver, self._collect, self._tell = loop, start_saver, collect, tell
        self.may_begin = may_begin
        """whether ranks can be started by now: the fork server is ready, or it is known that there is none"""
        self._collectors: dict[int, DumpCollector] = {}
        self._waiting: list[Request] = []
        self._repeated = False  # the request under way is one over which a saver has died
        self._lost: Request | None = None  # one over which a saver has died, and that no other was asked yet
        self._missing_since: float | None = None  # since when no saver can be started
        self._next_try = 0.0
        self._link: SaverLink | None = None
        self._start()

    # --- the saver --------------------------------------------------------------------------------------------

    def ask_saver(self, request: Request, slot_dirs: SlotDirs) -> None:
        """Have shards written."""
        if request.get("do") == "hurry":
            if self._link is not None and self._link.pending is not None:
                self._link.hurry()
            return
        self._waiting.append({**request, "ranks": slot_dirs(request.pop("slots"))})
        self._ask()

    def _ask(self) -> None:
        link = self._link
        if link is None or link.pending is not None:
            return
        if self._lost is not None:
            lost, self._lost = self._lost, None
            link.ask(lost)
        elif self._waiting:
            self._repeated = False
            link.ask(self._waiting.pop(0))

    def _on_saver(self) -> None:
        link = self._link
        assert link is not None
        pending, answers = link.pending, link.answers()
        if answers is None:
            answers = self._forget(link, pending)
            with contextlib.suppress(OSError):  # `look` tries it again
                self._start()
        for answer in answers:
            assert pending is not None
            self._tell("saver", answer={**answer, "number": pending["number"]})
        self._ask()

    def _forget(self, link: SaverLink, pending: Request | None) -> list[dict[str, Any]]:
        """A saver has died; returns what is answered for it. The next saver is asked once more for what it was about.

        pending: the request under way.
        """
        self._loop.unregister(link.fd)
        self._link, status = None, link.close(1.0)
        if pending is None:
            return []
        if self._repeated:
            return [{"error": f"its saver has died twice over it ({status})"}]
        self._repeated, self._lost = True, pending
        return []

    def _start(self) -> None:
        """Start a saver. Raises OSError."""
        link = self._start_saver()
        try:
            self._loop.register(link.fd, self._on_saver)
        except OSError:
            link.close(0.0)
            raise
        self._link = link

    def _start_again(self, now: float) -> None:
        """Start a saver where there is none; what it is asked for fails where that cannot be done for long."""
        self._next_try = now + _AGAIN_SECONDS
        try:
            self._start()
        except OSError as error:
            if self._missing_since is None:
                self._missing_since = now
            if now - self._missing_since >= _WITHOUT_SECONDS:
                self._fail_requests(f"no saver can be started: {error.strerror}")
            return
        self._missing_since = None
        self._ask()

    def _fail_requests(self, why: str) -> None:
        requests = self._waiting if self._lost is None else [self._lost, *self._waiting]
        self._waiting, self._lost = [], None
        for request in requests:
            self._tell("saver", answer={"error": why, "number": request["number"]})

    # --- autopsies --------------------------------------------------------------------------------------------

    def collect(self, number: int, request: Request) -> None:
        """Collect what an autopsy is made of."""
        try:
            self._collectors[number] = self._collect(request)
        except OSError:  # the autopsy has nothing of this node's ranks then
            self._tell("collected", number=number)

    def collect_no_more(self, number: int) -> None:
        """Nobody waits for it any more."""
        if (collector := self._collectors.pop(number, None)) is not None:
            collector.kill()

    def look(self, now: float) -> None:
        """Tell of what has been collected, and see whether the saver can answer."""
        if self._link is not None:
            self._link.look(now)
        elif now >= self._next_try:
            self._start_again(now)
        for number, collector in list(self._collectors.items()):
            if collector.poll() is not None:
                del self._collectors[number]
                self._tell("collected", number=number)

    def close(self, patience: float) -> None:
        """Let the saver leave."""
        for number in list(self._collectors):
            self.collect_no_more(number)
        self._waiting.clear()
        if self._link is not None:
            self._link.close(patience)
