"""Opens the checkpoint store of a job before anything looks at the job's checkpoint folder. Waits for the store."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.reporting.events.stores import StoreOpened
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.helper_process import HelperProcesses

_MOST_TRIES = 3  # of keepers that are started until one has opened the store
_DIED = "the process that asks it has died"
_KEEPER = "ftlaunch.checkpoints.stores.keeper"
LEAVE_SECONDS = 5.0
"""how long a keeper may take to say in the store that it leaves; without that, a start elsewhere has to wait"""


class StoreClosedError(Exception):
    """The store cannot be used. The message is a sentence."""


def wait_for_answer(helper: SaverLink, interrupted: int) -> dict[str, Any]:
    """Wait for an answer of a process that reads a store; one with `error` if it dies, or the job is told to stop.

    Args:
        helper: the process.
        interrupted: a descriptor that becomes readable when the job is told to stop.
    """
    ready = select.poll()
    for fd in (helper.fd, interrupted):
        ready.register(fd, select.POLLIN)
    while True:
        readable = {fd for fd, _ in ready.poll()}
        if helper.fd in readable:
            answers = helper.answers()
            if answers is None:
                return {"error": _DIED}
            if answers:
                return answers[0]
        elif interrupted in readable:
            return {"error": "the job was told to stop before the store had answered"}


class StoreHasOwnerError(StoreClosedError):
    """A process that lives keeps the store."""


class KeeperDiedError(StoreClosedError):
    """The keeper has died before it has answered."""


class StoreOpening:
    """The store of a job, from the start until the event loop runs."""

    def __init__(
        self,
        spec: JobSpec,
        helpers: HelperProcesses,
        interrupted: int,
        life: str = "",
        adopted: str = "",
        *,
        ranks_run: bool = False,
        meeting: tuple[str, int] | None = None,
    ) -> None:
        """Ask nothing yet.

        Args:
            spec: the job, which has a store.
            helpers: the job's helper processes.
            interrupted: a descriptor that becomes readable when the job is told to stop.
            life: the name of the life that a job of several nodes begins; empty on one node.
            adopted: the name of an earlier life whose ranks may run on; empty: there is none.
            ranks_run: whether ranks may run on meanwhile, so that no checkpoint is brought: that may take long.
            meeting: where the head of a job of several nodes listens, which a machine that has nothing learns from the
                store.
        """
        self._spec = spec
        self._helpers = helpers
        self._interrupted = interrupted
        self._life = life
        self._adopted = adopted
        self._ranks_run = ranks_run
        self._meeting = meeting
        self._marker = ""
        self._locks: Sequence[int] = ()
        self._request: dict[str, Any] = {}  # to open the store
        self._keeper: SaverLink | None = None
        self.opened: dict[str, Any] = {}
        """the keeper's answer to `open`, listed in keeper.py"""

    @property
    def keeper(self) -> SaverLink:
        """The running keeper, once `open` has returned."""
        assert self._keeper is not None
        return self._keeper

    def open(
        self, marker: str, locks: Sequence[int], memory: Path, newer_than: int, say: Callable[[str], None]
    ) -> StoreOpened:
        """Start the keeper, and wait until it has taken the store over and has brought what the folder lacks.

        Args:
            marker: NAME=VALUE by which leftovers of the job are recognised.
            locks: descriptors of locks that the keeper holds, too: a successor waits until an upload is over.
            memory: the memory directory, whose snapshots are deleted if the job has gone on elsewhere.
            newer_than: the step that memory has, or -1; nothing is brought unless the store has a newer step.
            say: shows a sentence to the user.

        Raises:
            StoreClosedError: the store cannot be used, or the job was told to stop.
            OSError: no process can be started.
        """
        spec = self._spec
        request: dict[str, Any] = {
            "do": "open",
            "store": spec.saving.checkpoint_store,
            "is_checked": True,
            "directory": str(spec.checkpoint_dir),
            "job": spec.job_id,
            "owner": f"{socket.gethostname()} (pid {os.getpid()})",
            "newer_than": None if self._ranks_run else newer_than,
            "memory": str(memory),
            "life": self._life,
            "adopted": self._adopted,
            "meeting": self._meeting,
            "take_over": spec.saving.take_over_store or self._ranks_run,
        }
        self._marker = marker
        self._locks = locks
        self._request = request
        for tries_left in reversed(range(_MOST_TRIES)):
            self._start()
            try:
                self.opened = self._ask(request, say)
                break
            except KeeperDiedError:
                self.keeper.close(0.0)
                if not tries_left:
                    raise
        return StoreOpened(self.opened)

    def _start(self) -> SaverLink:
        self._keeper = SaverLink(self._helpers, self._marker, self._locks, program=_KEEPER)
        return self._keeper

    def start_another(self) -> SaverLink:
        """Start a keeper in the place of one that has died, and ask it to go on. Its answer comes later.

        Call after `open`.

        Raises:
            OSError: no process can be started.
        """
        keeper = self._start()
        keeper.ask({**self._request, "do": "go_on", "token": self.opened["token"]})
        return keeper

    def put_aside(self, above: int) -> None:
        """Have the store know that the job begins anew (-1), or goes on from step `above`: put later steps aside.

        They leave the list of usable steps, and their files stay in the store.

        Raises:
            StoreClosedError: the store does not answer, or the job was told to stop.
        """
        self.opened = {**self.opened, **self._ask({"do": "put_aside", "above": above})}

    def bring(self, step: int) -> None:
        """Have a step brought that the folder lacks and the store has. A step that the store lacks is not brought.

        Raises:
            StoreClosedError: the store does not answer, or the job was told to stop.
        """
        self._ask({"do": "bring_step", "step": step})

    def _ask(self, request: dict[str, Any], say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
        """Wait for the answer to a request, or for an interruption. Raises StoreClosedError.

        Args:
            request: the request.
            say: shows a sentence to the user.
        """
        self.keeper.ask(request)
        answer = wait_for_answer(self.keeper, self._interrupted)
        if answer.get("did") == "wait":
            say(
                f"waiting up to {answer['seconds']:.0f} s for a sign of life of {answer['owner']}, which has kept"
                f" {self._spec.saving.checkpoint_store} and has not said that it left (--take-over-store does not wait)"
            )
            answer = wait_for_answer(self.keeper, self._interrupted)
        if "error" in answer:
            error = str(answer["error"])
            where = f"cannot use {self._spec.saving.checkpoint_store} as `checkpoint_dir`: "
            kind = KeeperDiedError if error == _DIED else StoreClosedError
            if answer.get("has_owner"):
                kind = StoreHasOwnerError
            raise kind(error if error.startswith("cannot ") else where + error)
        return answer

    def close(self) -> None:
        """End the keeper of a job that does not start."""
        if self._keeper is not None:
            self._keeper.close(LEAVE_SECONDS)
