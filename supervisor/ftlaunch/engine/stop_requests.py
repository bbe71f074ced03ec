"""What comes from outside: signals, and the control socket of `ftctl` and of ranks that were told to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.common.signal_names import signal_name
from ftlaunch.engine.context import Context
from ftlaunch.engine.supervisor import Supervisor
from ftlaunch.policy.states import Event, JobState
from ftlaunch.ranks.view import all_attached
from ftlaunch.reporting.events.base import Note
from ftlaunch.reporting.events.job import SaveRequested, StopRequested
from ftlaunch.system.control_socket import Client, Control, ControlServer
from ftlaunch.system.signals import Signals

_HURRY_AFTER = 0.5  # a second Ctrl-C counts as "now" only so many seconds after the first
_LONGEST_REASON = 200
Verb = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Does what is asked; returns the answer, JSON-ready, with `ok` and, where that is false, `error`."""


def with_ranks(request: Mapping[str, Any]) -> bool:
    """Whether a `status` asks for what is known of each rank."""
    return request.get("ranks") is not False


def reason_of(request: Mapping[str, Any]) -> str:
    """Who asks, as the journal and the terminal say it."""
    return str(request.get("why", "asked on the control socket"))[:_LONGEST_REASON]


class StopRequests:
    """Posts STOP and HURRY, and answers what is asked."""

    def __init__(
        self, context: Context, signals: Signals, control: Control, supervisor: Supervisor,
        more: Mapping[str, Verb] | None = None,
    ) -> None:  # fmt: skip
        """more: what else can be asked."""
        own: dict[str, Verb] = {"stop": self._on_stop, "status": self._on_status, "save": self._on_save}
        self._verbs: dict[str, Verb] = own | dict(more or {})
        self._context, self._signals, self._supervisor = context, signals, supervisor
        self._reason = ""
        self._interrupted_at: float | None = None
        context.loop.register(signals.fd, self._on_signals)
        ControlServer(control, context.loop, context.clock, self._on_request, self._on_no_client)

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

    def _on_no_client(self, error: OSError) -> None:
        self._context.bulkheads.note("accept a client on the control socket", error)

    def _on_request(self, client: Client, request: Mapping[str, Any]) -> None:
        what, failed = "answer a client on the control socket", {"ok": False, "error": "cannot answer: see the journal"}
        client.answer(self._context.bulkheads.call(what, lambda: self.answer(request), failed))

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked, and answer."""
        verb = self._verbs.get(str(request.get("do")))
        if verb is None:
            *others, last = sorted(f"`{name}`" for name in self._verbs)
            return {"ok": False, "error": f"cannot do that: known are {', '.join(others)} and {last}"}
        return verb(request)

    def _on_stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.stop(reason_of(request))
        return {"ok": True}

    def _on_save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        supervisor = self._supervisor
        if supervisor.state is not JobState.RUNNING or supervisor.attempt is None:
            why = f"cannot save now: the job is `{supervisor.state.value}`; ask again when its ranks train"
            return {"ok": False, "error": why}
        if not all_attached(supervisor.attempt.group.views()):
            return {"ok": False, "error": "cannot save: not all ranks have attached, so that their state is not known"}
        self._context.tell(SaveRequested(reason_of(request)))
        supervisor.saving.request()
        return {"ok": True}

    def _on_status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"ok": True, **self._supervisor.overview(with_ranks(request)).as_dict()}
