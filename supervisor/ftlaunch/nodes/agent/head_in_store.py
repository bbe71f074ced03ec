"""Finds the head by the job's checkpoint store, for a machine that has nothing, while nobody answers at the endpoint.

The machine of the endpoint may be lost for good while the other nodes have elected a head elsewhere. That head writes
into the store where it listens (`checkpoints/stores/heartbeat.py`). Whether it lives shows only the connection: this
node tries the endpoint and the address of the store in turn. Runs in the agent's event loop and never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.nodes.agent.head_link import HeadLink
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.loop import Loop

_TURN_SECONDS = 10.0  # for which one place is tried before the other one


class HeadInStore:
    """The look into the store of one agent that has not met a head yet."""

    def __init__(
        self, spec: JobSpec, loop: Loop, start_keeper: Callable[[], SaverLink], say: Callable[[str], None]
    ) -> None:
        """Start nothing yet.

        Args:
            spec: the job, which has a store and an endpoint.
            loop: the agent's event loop.
            start_keeper: starts the process that reaches the store. Raises OSError.
            say: writes a sentence to this node's terminal.
        """
        self._spec = spec
        self._loop = loop
        self._start_keeper = start_keeper
        self._say = say
        self._keeper: SaverLink | None = None
        self._turn_at = _TURN_SECONDS  # after so many seconds without a head the other place is tried
        self._said = ""
        self.is_away = False
        """whether the link tries an address of the store, where another job may listen by now"""

    def poll(self, link: HeadLink, waited: float) -> None:
        """Try the other place if it is time for that.

        Args:
            link: the connection to the head, which has met none yet.
            waited: seconds for which there has been no head.
        """
        if waited < self._turn_at or self._keeper is not None:
            return
        self._turn_at = waited + _TURN_SECONDS
        nodes = self._spec.nodes
        if self.is_away:
            self.is_away = False
            link.go_to(nodes.address or "", nodes.port)
            return
        try:
            keeper = self._start_keeper()
        except OSError as error:
            self._complain(f"no process can be started that looks there: {error.strerror}")
            return
        try:
            self._loop.register(keeper.fd, lambda: self._on_keeper(link))
        except OSError as error:
            keeper.close(0.0)
            self._complain(f"no process can be waited for that looks there: {error.strerror}")
            return
        self._keeper = keeper
        keeper.ask({"do": "look", "store": self._spec.saving.checkpoint_store, "job": self._spec.job_id})

    def _on_keeper(self, link: HeadLink) -> None:
        assert self._keeper is not None
        answers = self._keeper.answers()
        if answers == []:
            return
        self.close()
        answer: dict[str, Any] = answers[0] if answers else {"error": "the process that looks there has died"}
        if "error" in answer:
            self._complain(answer["error"])
        elif answer["meeting"] is not None and not link.was_met:
            address, port = answer["meeting"]
            self.is_away = True
            link.go_to(address, port)

    def _complain(self, why: str) -> None:
        """Say once why the store does not tell where the head is."""
        if why != self._said:
            self._said = why
            self._say(f"cannot find the head by {self._spec.saving.checkpoint_store}: {why}")

    def close(self) -> None:
        """End the process."""
        if self._keeper is not None:
            self._loop.unregister(self._keeper.fd)
            self._keeper.close(0.0)
            self._keeper = None
