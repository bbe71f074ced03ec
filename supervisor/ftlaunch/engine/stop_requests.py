"""Takes requests from outside: signals, and the control socket (from `ftctl`, and from ranks that were told to stop).

Runs on the event loop in the main thread. Each request is answered at once; the work follows from the posted events.
"""

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

_HURRY_AFTER_SECONDS = 0.5
"""a second Ctrl-C means "at once" only if this much time has passed since the first"""
_LONGEST_REASON = 200
"""characters"""
Verb = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Serves one kind of request. Returns the answer, JSON-ready: `ok`, and `error` (a sentence) where `ok` is false."""


def with_ranks(request: Mapping[str, Any]) -> bool:
    """Return whether a `status` request asks for the state of each rank."""
    return request.get("ranks") is not False


def reason_of(request: Mapping[str, Any]) -> str:
    """Return who makes a request and why, as the journal and the terminal show this."""
    return str(request.get("why", "asked on the control socket"))[:_LONGEST_REASON]


LaterVerb = Callable[[Mapping[str, Any], Callable[[dict[str, Any]], None]], None]
"""Serves one kind of request, and calls the function with the answer, now or later."""


class StopRequests:
    """Posts STOP and HURRY for signals and requests to stop, and answers the requests on the control socket."""

    def __init__(
        self, context: Context, signals: Signals, control: Control, supervisor: Supervisor,
        more: Mapping[str, Verb] | None = None,
    ) -> None:  # fmt: skip
        """Register with the event loop.

        Args:
            context: what all modules of the engine share.
            signals: the signals that stop the job.
            control: the listening control socket.
            supervisor: the job.
            more: further kinds of requests by name, added to stop, status and save, or replacing these.
        """
        own: dict[str, Verb] = {"stop": self._on_stop, "status": self._on_status, "save": self._on_save}
        self._verbs: dict[str, Verb] = own | dict(more or {})
        self.later: dict[str, LaterVerb] = {}
        """further kinds of requests by name, which may be answered later"""
        self._context = context
        self._signals = signals
        self._supervisor = supervisor
        self._reason = ""
        self._interrupted_at: float | None = None
        context.loop.register(signals.fd, self._on_signals)
        ControlServer(
            control=control,
            loop=context.loop,
            clock=context.clock,
            on_request=self._on_request,
            report=self._on_no_client,
        )

    def _on_signals(self) -> None:
        now = self._context.clock()
        for signum in self._signals.read():
            self.stop(f"{signal_name(signum)} to the supervisor")
            if signum == signal.SIGINT:
                if self._interrupted_at is not None and now - self._interrupted_at > _HURRY_AFTER_SECONDS:
                    self._context.report(Note("interrupted again: killing the ranks, saving their newest snapshots"))
                    self._context.loop.post(Event.HURRY)
                self._interrupted_at = now

    def stop(self, reason: str) -> None:
        """Report the reason and post STOP. Later calls do nothing."""
        if not self._reason:  # a scheduler may signal twice, milliseconds apart
            self._reason = reason
            self._context.report(StopRequested(reason))
            self._context.loop.post(Event.STOP)

    def _on_no_client(self, error: OSError) -> None:
        self._context.bulkheads.note("accept a client on the control socket", error)

    def _on_request(self, client: Client, request: Mapping[str, Any]) -> None:
        refusal = {"ok": False, "error": "cannot answer: see the journal"}

        def serve() -> bool:
            self.serve(request, client.answer)
            return True

        if not self._context.bulkheads.call("answer a client on the control socket", serve, otherwise=False):
            client.answer(refusal)

    def serve(self, request: Mapping[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
        """Serve a request, and call `reply` with its answer, now or later."""
        later = self.later.get(str(request.get("do")))
        if later is None:
            reply(self._answer(request))
        else:
            later(request, reply)

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Serve a request and return its answer, JSON-ready, as `Verb` says. The key `do` names the kind of request."""
        verb = self._verbs.get(str(request.get("do")))
        if verb is None:
            *others, last = sorted(f"`{name}`" for name in (*self._verbs, *self.later))
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
        self._context.report(SaveRequested(reason_of(request)))
        supervisor.saving.request()
        return {"ok": True}

    def _on_status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"ok": True, **self._supervisor.overview(with_ranks(request)).as_dict()}
