"""What comes from outside: signals, and the control socket of `ftctl` and of ranks that were told to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from ftlaunch.common.signal_names import signal_name
from ftlaunch.engine.context import Context
from ftlaunch.policy.states import Event
from ftlaunch.reporting.events.base import Note
from ftlaunch.reporting.events.job import StopRequested
from ftlaunch.reporting.overview import Overview
from ftlaunch.system.control_socket import Client, Control
from ftlaunch.system.signals import Signals

_HURRY_AFTER = 0.5  # a second Ctrl-C counts as "now" only so many seconds after the first
_LONGEST_REASON = 200


class StopRequests:
    """Posts STOP and HURRY, and answers `status`."""

    def __init__(
        self, context: Context, signals: Signals, control: Control, overview: Callable[[], Overview],
        further: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda request: None,
    ) -> None:  # fmt: skip
        """overview: what `status` is answered with. further: answers other requests, those it knows."""
        self._context, self._signals, self._control, self._overview = context, signals, control, overview
        self._further = further
        self._reason = ""
        self._interrupted_at: float | None = None
        context.loop.register(control.fd, self._on_connect)
        context.loop.register(signals.fd, self._on_signals)

    def _on_signals(self) -> None:
        now = self._context.clock()
        for signum in self._signals.read():
            self.stop(f"{signal_name(signum)} to the supervisor")
            if signum == signal.SIGINT:
                if self._interrupted_at is not None and now - self._interrupted_at > _HURRY_AFTER:
                    self._context.tell(
                        Note("interrupted again: killing the ranks, saving their newest snapshots"),
                    )
                    self._context.loop.post(Event.HURRY)
                self._interrupted_at = now

    def stop(self, reason: str) -> None:
        """Stop the job, and tell why."""
        if not self._reason:  # a scheduler may signal twice, milliseconds apart: once is enough
            self._reason = reason
            self._context.tell(StopRequested(reason))
            self._context.loop.post(Event.STOP)

    def _on_connect(self) -> None:
        client = self._control.accept()
        if client is not None:
            self._context.loop.register(client.fd, lambda: self._on_client(client))

    def _on_client(self, client: Client) -> None:
        try:
            request = client.request()
        except (OSError, ValueError):
            self._context.loop.unregister(client.fd)
            client.close()
            return
        if request is None:
            return
        self._context.loop.unregister(client.fd)
        client.answer(self._answer(request))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("do") == "stop":
            self.stop(str(request.get("why", "asked on the control socket"))[:_LONGEST_REASON])
            return {"ok": True}
        if request.get("do") == "status":
            return {"ok": True, **self._overview().as_dict()}
        return self._further(request) or {"ok": False, "error": "cannot do that: known are `status` and `stop`"}
