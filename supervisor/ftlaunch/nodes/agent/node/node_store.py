"""This node's part of the job's checkpoint store, where its checkpoint directory is not the head's.

What the node's saver writes of a step goes to a folder of the store, and checkpoints come from the store into the
node's directory, both on the head's orders. The keeper, a process of its own, does the work; it is started for the
first order. Runs in the agent's event loop and never waits, but for `close`.
"""

from __future__ import annotations

import itertools
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.spec.job_spec import JobSpec

KEEPER = "ftlaunch.checkpoints.stores.keeper"
"""the module that a keeper runs"""
_STAGING = ".part-"  # how the names of directories begin in which the saver writes for an upload
_SIGN_SECONDS = 1.0  # between two signs that the node works on a request
Request = dict[str, Any]


class NodeStore:
    """The keeper of one agent, and what it was asked for."""

    def __init__(
        self,
        spec: JobSpec,
        name: str,
        loop: EventLoop[Any],
        start_keeper: Callable[[], SaverLink],
        send: Callable[..., None],
    ) -> None:
        """Start nothing yet.

        Args:
            spec: the job.
            name: a name that no other living agent of this machine has.
            loop: the agent's event loop.
            start_keeper: starts a keeper. Raises OSError.
            send: sends a message of `messages.UP`.
        """
        self._spec = spec
        self._name = name
        self._loop = loop
        self._start_keeper = start_keeper
        self._send = send
        self._numbers = itertools.count(1)
        self._link: SaverLink | None = None
        self._waiting: deque[tuple[Request, Request]] = deque()  # requests to the keeper, with what the answer has
        self._about: Request = {}  # what the answer to the request under way has
        self._sign_at = 0.0
        self._work: object = None  # what saver and keeper had done at the last sign

    def stage(self, request: Request) -> Request:
        """Return a request of the head's to write, as this node's saver gets it: into a directory of its own."""
        directory = self._spec.checkpoint_dir
        number = next(self._numbers)
        if number == 1:
            for left in directory.glob(f"{_STAGING}{self._name}-*"):  # by an earlier agent of this name
                shutil.rmtree(left, ignore_errors=True)
        staging = directory / f"{_STAGING}{self._name}-{number}"
        return {**request, "checkpoint_dir": str(directory), "staging": str(staging)}

    def upload(self, request: Request, answer: Mapping[str, Any]) -> None:
        """Bring what the saver has written to the store, and pass the saver's answer on after that.

        Args:
            request: as `stage` has returned it.
            answer: the saver's answer, which has no error.
        """
        about = {**answer, "number": request["number"], "folder": request["folder"]}
        upload = {name: request[name] for name in ("folder", "staging", "bandwidth")}
        self._ask({"do": "upload", **upload}, about)

    def fetch(self, request: Request) -> None:
        """Bring a checkpoint, and the small files beside it, into this node's directory, as the head asks."""
        about = {"did": "fetch", "number": request["number"], "token": request["token"]}
        mine = self._spec.saving.checkpoint_store
        if mine != request["store"]:
            given = "none" if mine is None else mine
            why = f"the head's store is {request['store']}, and this node was given {given} (`--checkpoint-dir`)"
            self._answer(about, {"error": why})
        else:
            self._ask(request, about)

    def hurry(self) -> None:
        """Lift the bandwidth limit of the upload under way."""
        if self._link is not None and self._link.pending is not None:
            self._link.hurry()

    def _ask(self, request: Request, about: Request) -> None:
        self._waiting.append((request, about))
        try:
            if self._link is None:
                self._start()
        except OSError as error:
            self._fail_all(f"no process can be started that reaches the store: {error.strerror}")
            return
        self._ask_next()

    def _start(self) -> None:
        """Start a keeper. Raises OSError."""
        spec = self._spec
        link = self._start_keeper()
        try:
            self._loop.register(link.fd, self._on_keeper)
        except OSError:
            link.close(0.0)
            raise
        self._link = link
        self._about = {}
        link.ask(
            {
                "do": "attach",
                "is_checked": True,
                "store": spec.saving.checkpoint_store,
                "directory": str(spec.checkpoint_dir),
                "job": spec.job_id,
            }
        )

    def _ask_next(self) -> None:
        link = self._link
        if link is not None and link.pending is None and self._waiting:
            request, self._about = self._waiting.popleft()
            link.ask(request)

    def _on_keeper(self) -> None:
        link = self._link
        assert link is not None
        answers = link.answers()
        if answers is None:
            self._loop.unregister(link.fd)
            self._link = None
            status = link.close(1.0)
            self._fail_all(f"the process that reaches the store has died ({status})")
            return
        for answer in answers:
            if answer["did"] == "attach" and "error" in answer:
                self._fail_all(answer["error"])
            elif answer["did"] != "attach":
                self._answer(self._about, answer)
        self._ask_next()

    def _answer(self, about: Request, answer: Mapping[str, Any]) -> None:
        """Send the head the answer to a request: what it begins with, and whether the keeper has failed."""
        self._about = {}
        failed = {name: answer[name] for name in ("error", "damaged") if name in answer}
        self._send("saver", answer={**about, **failed})

    def _fail_all(self, error: str) -> None:
        waiting = [self._about, *(about for _, about in self._waiting)]
        self._waiting.clear()
        for about in filter(None, waiting):
            self._answer(about, {"error": error})

    def poll(self, saver: SaverLink | None, now: float) -> None:
        """Check that the keeper is not stuck, and give the head a sign that a save of this node goes on.

        Args:
            saver: the node's saver.
            now: monotonic seconds.
        """
        if self._link is not None:
            self._link.kill_if_stopped(now)
        if now < self._sign_at + _SIGN_SECONDS:
            return
        self._sign_at = now
        staged = None if saver is None else saver.pending
        number = self._about.get("number") or (staged is not None and "staging" in staged and staged["number"])
        work = saver.work() if staged is not None and saver is not None else None
        if self._about and self._link is not None:
            work = self._link.work()
        if number and work != self._work:
            self._send("saver", answer={"did": "work", "number": number})
        self._work = work

    def close(self) -> None:
        """End the keeper. What it uploads belongs to no checkpoint any more."""
        if self._link is not None:
            self._loop.unregister(self._link.fd)
            self._link.close(0.0)
            self._link = None
