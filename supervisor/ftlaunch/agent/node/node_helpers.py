"""The helper processes of a node: its saver, its fork server, and what collects an autopsy; asked by the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.autopsy.client import Collect, DumpCollector
from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.engine.event_loop import EventLoop

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
        self._link = start_saver()
        loop.register(self._link.fd, self._on_saver)

    # --- the saver --------------------------------------------------------------------------------------------

    def ask_saver(self, request: Request, slot_dirs: SlotDirs) -> None:
        """Have shards written."""
        if request.get("do") == "hurry":
            if self._link.pending is not None:
                self._link.hurry()
            return
        self._waiting.append({**request, "ranks": slot_dirs(request.pop("slots"))})
        self._ask()

    def _ask(self) -> None:
        if self._waiting and self._link.pending is None:
            self._repeated = False
            self._link.ask(self._waiting.pop(0))

    def _on_saver(self) -> None:
        pending = self._link.pending
        answers = self._link.answers()
        if answers is None:
            self._loop.unregister(self._link.fd)
            status = self._link.close(1.0)
            self._link = self._start_saver()
            self._loop.register(self._link.fd, self._on_saver)
            if pending is not None and not self._repeated:
                self._repeated = True
                self._link.ask(pending)
                return
            answers = [] if pending is None else [{"error": f"its saver has died twice over it ({status})"}]
        for answer in answers:
            assert pending is not None
            self._tell("saver", answer={**answer, "number": pending["number"]})
        self._ask()

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
        self._link.look(now)
        for number, collector in list(self._collectors.items()):
            if collector.poll() is not None:
                del self._collectors[number]
                self._tell("collected", number=number)

    def close(self, patience: float) -> None:
        """Let the saver leave."""
        for number in list(self._collectors):
            self.collect_no_more(number)
        self._waiting.clear()
        self._link.close(patience)
