"""The helper processes of a node that the head gives work to: the saver and the autopsy collectors.

Runs in the agent's event loop. A saver that dies is replaced, and its request is repeated once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.autopsy.client import Collect, DumpCollector
from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.agent.node.node_load import NodeLoad
from ftlaunch.nodes.agent.node.node_store import NodeStore
from ftlaunch.nodes.agent.node.node_voter import NodeVoter
from ftlaunch.nodes.agent.node.own_files import OwnFiles

_RETRY_SECONDS = 1.0
"""seconds between two tries to start a saver"""
_WITHOUT_SECONDS = 5.0
"""seconds without a saver, because none can be started, after which its requests fail"""
SlotDirs = Callable[[Mapping[str, int]], dict[str, str]]
"""returns the directory of a snapshot slot by rank, for the slot's number by rank"""
Request = dict[str, Any]


class NodeHelpers:
    """The helper processes of one agent."""

    def __init__(
        self,
        loop: EventLoop[Any],
        start_saver: Callable[[], SaverLink],
        collect: Collect,
        may_begin: Callable[[float], bool],
        own_files: OwnFiles,
        store: NodeStore,
        load: NodeLoad,
        voter: NodeVoter,
        send: Callable[..., None],
    ) -> None:
        """Start the saver.

        Args:
            loop: the agent's event loop.
            start_saver: starts a saver. Raises OSError.
            collect: starts an autopsy collector. Raises OSError.
            may_begin: returns, for a moment in monotonic seconds, whether ranks can be started.
            own_files: sends the head the data of autopsies, where the run dir is not shared.
            store: the checkpoint store, where the checkpoint directory is not the head's.
            load: brings the checkpoint at an address with which the job begins, where the run dir is not the head's.
            voter: keeps who the head is, where nodes elect it.
            send: sends a message of `messages.UP`.

        Raises:
            OSError: the saver cannot be started.
        """
        self._loop = loop
        self._start_saver = start_saver
        self._collect = collect
        self._send = send
        self.may_begin = may_begin
        """returns whether ranks can be started at a moment: the fork server is ready, or is known not to work"""
        self._own_files = own_files
        self._store = store
        self._load = load
        self.voter = voter
        """keeps who the head is, where nodes elect it"""
        self._collectors: dict[int, tuple[DumpCollector, Path]] = {}  # with the directory of each autopsy
        self._waiting: list[Request] = []
        self._repeated = False  # a saver has already died over the request under way
        self._lost_request: Request | None = (
            None  # the request over which a saver has died, until the next saver is asked
        )
        self._missing_since: float | None = None  # since when no saver can be started
        self._next_try = 0.0
        self._link: SaverLink | None = None
        self._start()

    # --- the saver --------------------------------------------------------------------------------------------

    def ask_saver(self, request: Request, slot_dirs: SlotDirs) -> None:
        """Pass a request on to the saver, after those that wait.

        Args:
            request: what the head asks for; `hurry` is passed on at once.
            slot_dirs: turns the request's slots into directories.
        """
        if request.get("do") == "hurry":
            if self._link is not None and self._link.pending is not None:
                self._link.hurry()
            self._store.hurry()
            return
        if request.get("do") == "fetch":
            self._store.fetch(request)
            return
        if request.get("do") == "load":
            self._load.fetch(request)
            return
        if request.get("do") == "forget_load":
            self._load.forget()
            return
        if "folder" in request:
            request = self._store.stage(request)
        self._waiting.append({**request, "ranks": slot_dirs(request.pop("slots"))})
        self._ask()

    def _ask(self) -> None:
        link = self._link
        if link is None or link.pending is not None:
            return
        if self._lost_request is not None:
            lost = self._lost_request
            self._lost_request = None
            link.ask(lost)
        elif self._waiting:
            self._repeated = False
            link.ask(self._waiting.pop(0))

    def _on_saver(self) -> None:
        link = self._link
        assert link is not None
        pending = link.pending
        answers = link.answers()
        if answers is None:
            answers = self._forget(link, pending)
            with contextlib.suppress(OSError):  # `poll` tries again
                self._start()
        for answer in answers:
            assert pending is not None
            if "staging" in pending and "error" not in answer:
                self._store.upload(pending, answer)
            else:
                self._send("saver", answer={**answer, "number": pending["number"]})
        self._ask()

    def _forget(self, link: SaverLink, pending: Request | None) -> list[dict[str, Any]]:
        """Give up a saver that has died, and note its request for the next saver.

        Args:
            link: the connection to the dead saver.
            pending: the request under way, or None.

        Returns:
            The answers in the saver's place: an error if two savers have died over the same request, else nothing.
        """
        self._loop.unregister(link.fd)
        self._link = None
        status = link.close(1.0)
        if pending is None:
            return []
        if self._repeated:
            return [{"error": f"its saver has died twice over it ({status})"}]
        self._repeated = True
        self._lost_request = pending
        return []

    def _start(self) -> None:
        """Start a saver.

        Raises:
            OSError: no saver can be started.
        """
        link = self._start_saver()
        try:
            self._loop.register(link.fd, self._on_saver)
        except OSError:
            link.close(0.0)
            raise
        self._link = link

    def _retry_start(self, now: float) -> None:
        """Try again to start a saver. After _WITHOUT_SECONDS of failures, fail the requests that wait."""
        self._next_try = now + _RETRY_SECONDS
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
        requests = self._waiting if self._lost_request is None else [self._lost_request, *self._waiting]
        self._waiting = []
        self._lost_request = None
        for request in requests:
            self._send("saver", answer={"error": why, "number": request["number"]})

    # --- autopsies --------------------------------------------------------------------------------------------

    def collect(self, number: int, request: Request) -> None:
        """Start to collect the data of an autopsy.

        Args:
            number: identifies the collector in messages.
            request: what to collect.
        """
        try:
            own_request = self._own_files.autopsy_request(request)
            self._collectors[number] = self._collect(own_request), Path(own_request["directory"])
        except OSError:  # the autopsy then has no data of this node's ranks
            self._send("collected", number=number)

    def collect_no_more(self, number: int) -> None:
        """Kill a collector, because the head no longer waits for its data."""
        if (found := self._collectors.pop(number, None)) is not None:
            collector, _ = found
            collector.kill()

    def poll(self, now: float) -> None:
        """Report collectors that have finished; start a saver if there is none, or check the one that runs."""
        self._store.poll(self._link, now)
        self._load.poll(now)
        self.voter.poll(now)
        if self._link is not None:
            self._link.kill_if_stopped(now)
        elif now >= self._next_try:
            self._retry_start(now)
        for number, (collector, directory) in list(self._collectors.items()):
            if collector.poll() is not None:
                del self._collectors[number]
                self._own_files.send_autopsy(directory)
                self._send("collected", number=number)

    def close(self, patience_seconds: float) -> None:
        """Kill the collectors, and end the saver.

        Args:
            patience_seconds: seconds that the saver is given to finish.
        """
        for number in list(self._collectors):
            self.collect_no_more(number)
        self._waiting.clear()
        self._store.close()
        self._load.close()
        self.voter.close()
        if self._link is not None:
            self._link.close(patience_seconds)
