"""Brings the checkpoint at an address with which the job begins to this node, where the run dir is not the head's.

A process of its own does it, started on the head's order, which ends once it has answered. Runs in the agent's event
loop and never waits, but for `close`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.spec.job_spec import JobSpec

FETCHER = "ftlaunch.checkpoints.stores.load_fetcher"
"""the module that the process runs"""
_SIGN_SECONDS = 1.0  # between two signs that more was brought
Request = Mapping[str, Any]


class NodeLoad:
    """The process of one agent, and what it was asked for."""

    def __init__(
        self,
        spec: JobSpec,
        loop: EventLoop[Any],
        start_fetcher: Callable[[], SaverLink],
        send: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        """Start nothing yet.

        Args:
            spec: the job.
            loop: the agent's event loop.
            start_fetcher: starts a process. Raises OSError.
            send: sends a message of `messages.UP`.
            say: writes a sentence to this node's terminal.
        """
        self._spec = spec
        self._loop = loop
        self._start_fetcher = start_fetcher
        self._send = send
        self._say = say
        self._link: SaverLink | None = None
        self._about: dict[str, Any] = {}  # what the answer to the request under way has
        self._sign_at = 0.0
        self._work: object = None  # what the process had done at the last sign

    def forget(self) -> None:
        """Remove what an earlier start has brought, because the job goes on from its own state."""
        target = self._spec.saving.load_checkpoint
        if self._spec.saving.load_address is None or target is None or self._link is not None:
            return
        if target.parent.exists():
            with contextlib.suppress(OSError):  # it stays there until a later start
                self._start()
                assert self._link is not None
                self._link.ask({"do": "forget", "target": str(target)})

    def fetch(self, request: Request) -> None:
        """Bring what the head has brought, as the head asks. A request before, of an earlier head, is given up."""
        self.close()
        self._about = {"did": "load", "number": request["number"], "token": request["token"]}
        mine = self._spec.saving.load_address
        address = request["like"]["address"]
        if mine != address:
            given = "none" if mine is None else mine
            self._answer(f"the head begins with {address}, and this node was given {given} (`--load-checkpoint`)")
            return
        try:
            self._start()
        except OSError as error:
            self._answer(f"no process can be started that brings it: {error.strerror}")
            return
        assert self._link is not None
        self._say(f"bringing the checkpoint with which the job begins from {address}")
        target = str(self._spec.saving.load_checkpoint)
        self._link.ask({"do": "fetch", "address": address, "target": target, "like": request["like"]})

    def _start(self) -> None:
        """Start the process. Raises OSError."""
        link = self._start_fetcher()
        try:
            self._loop.register(link.fd, self._on_fetcher)
        except OSError:
            link.close(0.0)
            raise
        self._link = link

    def _on_fetcher(self) -> None:
        link = self._link
        assert link is not None
        answers = link.answers()
        if answers is None:
            self.close()
            if self._about:
                self._answer("the process that brings it has died")
            return
        for answer in answers:
            if answer["did"] == "progress":
                self._say(answer["line"])
                continue
            self.close()
            if answer["did"] == "fetch":
                self._answer(answer.get("error", ""))
            return

    def _answer(self, error: str) -> None:
        self._send("saver", answer={**self._about, **({"error": error} if error else {})})
        self._about = {}

    def poll(self, now: float) -> None:
        """Check that the process is not stopped, and give the head a sign that more was brought.

        Args:
            now: monotonic seconds.
        """
        if self._link is not None:
            self._link.kill_if_stopped(now)
        if not self._about or self._link is None or now < self._sign_at + _SIGN_SECONDS:
            return
        self._sign_at = now
        work = self._link.work()
        if work != self._work:
            self._send("saver", answer={**self._about, "goes_on": 1})
        self._work = work

    def close(self) -> None:
        """End the process, if there is one. What it has brought so far is brought anew by the next."""
        if self._link is not None:
            self._loop.unregister(self._link.fd)
            self._link.close(0.0)
            self._link = None
