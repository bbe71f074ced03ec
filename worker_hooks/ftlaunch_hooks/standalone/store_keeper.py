"""Keeps the checkpoint store of a job without a supervisor: starts the process that does, in rank 0, and asks it.

That process is the supervisor's own keeper (ftlaunch/checkpoints/stores/keeper.py lists the requests). It brings what
the checkpoint directory lacks before the job resumes, and makes the store have what the directory has, beside the
training. When rank 0 is gone, it ends after the upload under way; until then it holds the directory's lock.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ftlaunch_contract import protocol
from ftlaunch_contract.files import atomic
from ftlaunch_contract.pages.page import NONE
from ftlaunch_hooks.process.operations import log_operation
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone.settings import AloneError, Settings

_KEEPER = "ftlaunch.checkpoints.stores.keeper"
_MOST_DEATHS = 3  # of keepers over one request
_LEAVE_SECONDS = 5.0  # in which the keeper is to say in the store that it leaves
_DIED = "the process that reaches the store has died"
Answer = dict[str, Any]


class _Link:
    """A running keeper, and a thread that reads its answers. One request is under way at a time."""

    def __init__(self, locks: Sequence[int], overtaken: Callable[[str], None]) -> None:
        """Start a keeper. Raises OSError.

        Args:
            locks: descriptors of locks that the keeper holds, too.
            overtaken: called with a sentence, in the thread, if another process has taken the store over.
        """
        self._overtaken = overtaken
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a forked child closes its end, and must not flush what this process has not sent yet
            cwd="/",  # `-m` looks there first, and a user may have a json.py where the script was started
            pass_fds=tuple(locks),
            start_new_session=True,  # a signal to the ranks is not meant for it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._writing = threading.Lock()
        # A forked child that kept the pipe open would keep the keeper from seeing that rank 0 is gone.
        os.register_at_fork(after_in_child=self._stdin.close)
        self._stdout = self._process.stdout
        threading.Thread(target=self._read, name="ftlaunch-store", daemon=True).start()

    def _read(self) -> None:
        """Run in the thread: read answers until the keeper is gone, which may cut its last one short."""
        with open(self._stdout.fileno(), "rb", closefd=False) as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                answer = json.loads(line)
                if answer["did"] == "heartbeat":
                    self._overtaken(answer["error"])
                else:
                    self._answers.put(answer)
        self._answers.put(None)

    def send(self, message: Answer) -> None:
        """Send a message. A keeper that is gone is found by the thread that reads."""
        with self._writing, suppress(OSError):
            if not self._stdin.closed:
                atomic.write_all(self._stdin.fileno(), json.dumps(message).encode() + b"\n")

    def answer(self) -> Answer | None:
        """Wait for the next answer; None if the keeper is gone."""
        answer = self._answers.get()
        if answer is None:
            self._answers.put(None)  # for whoever asks once more
        return answer

    def leave(self) -> None:
        """Let the keeper say in the store that it leaves, and end it."""
        self.send({"do": "leave"})
        with self._writing, suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class StoreKeeper:
    """The store of a job on one node. `open` comes first."""

    def __init__(self, settings: Settings, locks: Sequence[int], stop: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            settings: the job's settings, with a store.
            locks: descriptors of the checkpoint directory's lock.
            stop: has the job stop at its next step boundary; called in another thread.
        """
        self._locks = locks
        self._stop = stop
        self._opening: Answer = {
            "do": "open",
            "store": settings.store,
            "is_checked": False,
            "directory": str(settings.checkpoint_dir),
            "job": settings.prefix,
            "owner": f"{socket.gethostname()} (pid {os.getpid()})",
            "newer_than": NONE,
            "memory": "",
            "life": "",
            "adopted": "",
            "meeting": None,
            "take_over": settings.take_over_store,
        }
        self._bandwidth = settings.bandwidth or None
        self._link: _Link | None = None
        self.where = ""
        """the address of the store, for people, once it is open"""
        self._newest = NONE  # of the store, when it was opened
        self.has_only_damaged = False
        """whether the store has steps, and all of them are damaged"""
        self._token = ""
        self._is_overtaken = False
        self._changed = threading.Condition()
        self._wanted: Answer | None = None  # what the store is to follow next
        self._following: Answer | None = None  # what it follows now
        self._thread: threading.Thread | None = None

    # --- before the job resumes -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the store over, and have the newest checkpoint brought if the directory lacks it.

        Raises:
            AloneError: the store cannot be used.
        """
        opened = self._ask_surely(self._opening)
        if opened["did"] == "wait":
            say(
                f"waiting up to {opened['seconds']:.0f} s for a sign of life of {opened['owner']}, which has kept"
                " the checkpoint store and has not said that it left"
            )
            opened = self._answer_to(self._opening)
        opened = self._usable(opened)
        self.where = str(opened["where"])
        self._token = str(opened["token"])
        self._newest = int(opened["newest"])
        self.has_only_damaged = bool(opened["all_damaged"])
        for refused in opened["refused"]:
            say(f"step {refused['step']} in {self.where} is refused: {refused['why']}")
        if opened["strays"]:
            steps = ", ".join(map(str, opened["strays"]))
            say(
                f"the job has gone on elsewhere: step {steps} of this machine is not in {self.where}, and is now in"
                " quarantine"
            )
        if opened["brought"]:
            say(f"brought step {', '.join(map(str, opened['brought']))} from {self.where}")

    def bring_step(self, step: int) -> None:
        """Have a step brought that the directory lacks and the store has. Raises AloneError."""
        self._usable(self._ask_surely({"do": "bring_step", "step": step}))

    def bring_better(self, than: int) -> bool:
        """Have the newest whole step above `than` brought. Return whether there was one. Raises AloneError."""
        if self._newest <= than:
            return False
        return bool(
            self._usable(self._ask_surely({"do": "bring_better", "than": than, "healthy_before": None}))["brought"]
        )

    def put_aside(self, above: int) -> None:
        """Have the store know that the directory has no step after this one. Raises AloneError.

        Args:
            above: the newest step of the directory; NONE: it has none.
        """
        if self._newest > above or self.has_only_damaged:
            answer = self._usable(self._ask_surely({"do": "put_aside", "above": above}))
            self.has_only_damaged = bool(answer["all_damaged"])

    @staticmethod
    def _usable(answer: Answer) -> Answer:
        """Return an answer. Raises AloneError if it is an error."""
        if "error" not in answer:
            return answer
        error = str(answer["error"])
        if error.startswith("cannot "):
            raise AloneError(f"cannot attach: {error}")
        raise AloneError(f"cannot attach: cannot use {protocol.ENV_CHECKPOINT_DIR}: {error}")

    # --- requests -------------------------------------------------------------------------------------------------

    def _ask_surely(self, request: Answer) -> Answer:
        """Return the answer to a request; if keepers die over it again and again, one with an `error`."""
        for _ in range(_MOST_DEATHS):
            try:
                self._ensure_link()
            except OSError as error:
                return {"did": request["do"], "error": f"no process can be started: {error.strerror}"}
            assert self._link is not None
            self._link.send(request)
            if (answer := self._link.answer()) is not None:
                return answer
            self._forget_link()
        return {"did": request["do"], "error": _DIED}

    def _answer_to(self, request: Answer) -> Answer:
        """Return the next answer to a request that has had one."""
        assert self._link is not None
        if (answer := self._link.answer()) is not None:
            return answer
        self._forget_link()
        return {"did": request["do"], "error": _DIED}

    def _ensure_link(self) -> None:
        """Start a keeper if there is none. One that comes after another goes on with its claim. Raises OSError."""
        if self._link is not None:
            return
        self._link = _Link(self._locks, self._take_overtaken)
        if self._token:
            self._link.send({**self._opening, "do": "go_on", "token": self._token})
            self._link.answer()  # what it could not do, it tries again with the next request

    def _forget_link(self) -> None:
        assert self._link is not None
        self._link.leave()
        self._link = None

    def _take_overtaken(self, error: str) -> None:
        """Stop the job: another process keeps its store."""
        if not self._is_overtaken:
            self._is_overtaken = True
            say(f"{error}: the job goes on there, and is stopped here")
            self._stop()

    # --- beside the training --------------------------------------------------------------------------------------

    def follow(self, keep: int, keep_every: int, *, is_last: bool) -> None:
        """Have the store follow the directory, in a thread.

        Args:
            keep: how many checkpoints to keep.
            keep_every: steps; a checkpoint at a multiple is kept. 0: no such steps.
            is_last: whether the job waits for this, so that no upload keeps to the job's bandwidth any more.
        """
        if is_last:
            self.hurry()
        with self._changed:
            if self._is_overtaken:
                return
            bandwidth = None if is_last else self._bandwidth
            self._wanted = {"do": "publish", "keep": keep, "keep_every": keep_every, "bandwidth": bandwidth}
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ftlaunch-store", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._following = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._wanted is not None)
                self._following = request = self._wanted
                assert request is not None
                self._wanted = None
            self._report(self._ask_surely(request))

    def _report(self, answer: Answer) -> None:
        if answer.get("overtaken"):
            self._take_overtaken(answer["error"])
        elif "error" in answer:
            there = "they are on this machine, and go there with the next one"
            say(f"cannot bring checkpoints to {self.where}: {answer['error']}; {there}")
        elif answer["steps"]:
            steps = ", ".join(map(str, answer["steps"]))
            log_operation(f"step {steps} is in {self.where} ({answer['bytes']} bytes)")

    def hurry(self) -> None:
        """Let uploads go on as fast as they can, also where another keeper has to repeat them."""
        with self._changed:
            for request in (self._wanted, self._following):
                if request is not None:
                    request["bandwidth"] = None
        if self._link is not None:
            self._link.send({"do": "hurry"})

    def wait(self) -> None:
        """Wait until the store has what it was to follow, or that has failed. An upload may take any time."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is None and self._following is None)

    def leave(self) -> None:
        """Wait for the store, and end the keeper."""
        self.wait()
        if self._link is not None:
            self._forget_link()
