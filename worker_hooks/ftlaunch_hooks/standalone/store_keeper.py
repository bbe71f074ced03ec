"""Keeps the checkpoint store of a job without a supervisor, in rank 0, by the process that keeper_requests.py runs.

That process brings what the checkpoint directory lacks before the job resumes, and makes the store have what the
directory has, beside the training. The directory's lock is held until its last upload is over.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence

from ftlaunch_contract import protocol
from ftlaunch_contract.pages.page import NONE
from ftlaunch_hooks.process.operations import log_operation
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone.keeper_requests import Answer, KeeperRequests
from ftlaunch_hooks.standalone.settings import AloneError, Settings


class StoreKeeper:
    """The store of a job, in rank 0. `open` comes first."""

    def __init__(self, settings: Settings, locks: Sequence[int], stop: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            settings: the job's settings, with a store.
            locks: descriptors of the checkpoint directory's lock.
            stop: has the job stop at its next step boundary; called in another thread.
        """
        self._requests = KeeperRequests(locks, self._take_overtaken, self._greeting)
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
        self.where = ""
        """the address of the store, for people, once it is open"""
        self.newest = NONE
        """the newest usable step that the store had when it was opened; NONE: there was none"""
        self.has_forgotten = False
        """whether the job has gone on elsewhere, so that no snapshot in memory may be used"""
        self.has_only_damaged = False
        """whether the store has steps, and all of them are damaged"""
        self.token = ""
        """the token of the claim, once the store is open"""
        self._is_overtaken = False
        self._changed = threading.Condition()
        self._wanted: Answer | None = None  # what the store is to follow next
        self._is_following = False
        self._thread: threading.Thread | None = None

    # --- before the job resumes -----------------------------------------------------------------------------------

    def _greeting(self) -> Answer | None:
        """Return what a keeper is asked that comes after another one: to go on with its claim."""
        return {**self._opening, "do": "go_on", "token": self.token} if self.token else None

    def open(self, memory_step: int = NONE, life: str = "") -> None:
        """Take the store over, and have the newest checkpoint brought if the directory lacks it.

        Args:
            memory_step: the step from which the job can go on in memory, or NONE; only newer ones are brought.
            life: the name of the life that a job of several nodes begins; empty on one node.

        Raises:
            AloneError: the store cannot be used.
        """
        self._opening |= {"newer_than": memory_step, "life": life}
        opened = self.ask(self._opening)
        if opened["did"] == "wait":
            say(
                f"waiting up to {opened['seconds']:.0f} s for a sign of life of {opened['owner']}, which has kept"
                " the checkpoint store and has not said that it left"
            )
            opened = self._requests.next_answer(self._opening)
        opened = self._usable(opened)
        self.where = str(opened["where"])
        self.token = str(opened["token"])
        self.newest = int(opened["newest"])
        self.has_forgotten = opened["forgotten"] >= 0
        self.has_only_damaged = bool(opened["all_damaged"])
        self._say_refused(opened["refused"])
        if opened["strays"]:
            steps = ", ".join(map(str, opened["strays"]))
            say(
                f"the job has gone on elsewhere: step {steps} of this machine is not in {self.where}, and is now in"
                " quarantine"
            )
        if opened["brought"]:
            say(f"brought step {', '.join(map(str, opened['brought']))} from {self.where}")

    def _say_refused(self, refused: list[Answer]) -> None:
        for one in refused:
            say(f"step {one['step']} in {self.where} is refused: {one['why']}")

    def bring_step(self, step: int) -> None:
        """Have a step brought that the directory lacks and the store has. Raises AloneError."""
        self._usable(self.ask({"do": "bring_step", "step": step}))

    def bring_newest(self) -> None:
        """Have the newest whole step brought; older copies leave the directory. Raises AloneError."""
        answer = self._usable(self.ask({"do": "bring_newest", "healthy_before": None}))
        self._take_facts(answer)
        self._say_refused(answer["refused"])

    def check(self, step: int) -> bool:
        """Have the store looked at once more, because a node could not use a step. Return whether it is whole there.

        Raises:
            AloneError: the store cannot be used.
        """
        answer = self._usable(self.ask({"do": "check", "step": step}))
        self._take_facts(answer)
        self._say_refused(answer["refused"])
        return not answer["refused"]

    def _take_facts(self, answer: Answer) -> None:
        self.newest = int(answer["newest"])
        self.has_only_damaged = bool(answer["all_damaged"])

    def bring_better(self, than: int) -> bool:
        """Have the newest whole step above `than` brought. Return whether there was one. Raises AloneError."""
        if self.newest <= than:
            return False
        return bool(self._usable(self.ask({"do": "bring_better", "than": than, "healthy_before": None}))["brought"])

    def put_aside(self, above: int) -> None:
        """Have the store know that the directory has no step after this one. Raises AloneError.

        Args:
            above: the newest step of the directory; NONE: it has none.
        """
        if self.newest > above or self.has_only_damaged:
            self._take_facts(self._usable(self.ask({"do": "put_aside", "above": above})))

    @staticmethod
    def _usable(answer: Answer) -> Answer:
        """Return an answer. Raises AloneError if it is an error."""
        if "error" not in answer:
            return answer
        error = str(answer["error"])
        if error.startswith("cannot "):
            raise AloneError(f"cannot attach: {error}")
        raise AloneError(f"cannot attach: cannot use {protocol.ENV_CHECKPOINT_DIR}: {error}")

    def ask(self, request: Answer) -> Answer:
        """Return the keeper's answer to a request; one with an `error` if that cannot be had.

        A job that another process has overtaken is told to stop.
        """
        answer = self._requests.ask(request)
        if answer.get("overtaken"):
            self._take_overtaken(answer["error"])
        return answer

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
                self._is_following = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._wanted is not None)
                request = self._wanted
                assert request is not None
                self._wanted = None
                self._is_following = True
            self._report(self.ask(request))

    def _report(self, answer: Answer) -> None:
        if answer.get("overtaken"):
            return
        if "error" in answer:
            there = "they are on this machine, and go there with the next one"
            say(f"cannot bring checkpoints to {self.where}: {answer['error']}; {there}")
        elif answer["steps"]:
            steps = ", ".join(map(str, answer["steps"]))
            log_operation(f"step {steps} is in {self.where} ({answer['bytes']} bytes)")

    def hurry(self) -> None:
        """Let uploads go on as fast as they can, also where another keeper has to repeat them."""
        with self._changed:
            if self._wanted is not None:
                self._wanted["bandwidth"] = None
        self._requests.hurry()

    def wait(self) -> None:
        """Wait until the store has what it was to follow, or that has failed. An upload may take any time."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is None and not self._is_following)

    def leave(self) -> None:
        """Wait for the store, and end the keeper."""
        self.wait()
        self._requests.leave()
