"""Makes spans of restarts and sends them with OpenTelemetry's SDK (extra `otel`). Only `tracer` imports this module.

Ids of traces and spans are derived from the journal. A tracer that replaces a killed tracer sends the restarts of this
run again under the same ids, so that none is missing, and none counts twice for a collector that compares ids.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
from pathlib import Path

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from ftlaunch import __version__
from ftlaunch.history.journal import JournalFollower
from ftlaunch.spec.parsing.outlets import endpoint_name
from ftlaunch.system.descriptors import is_readable
from ftlaunch.views.metrics.line_check import sound
from ftlaunch.views.metrics.traces.phases import RestartPhases, RestartTrace

_INTERVAL_SECONDS = 1.0  # between readings of the journal
_MAX_WAITING = 1000  # spans that wait for a collector without an answer; the oldest are dropped


class _Ids(IdGenerator):
    """Generates ids that depend only on the restart."""

    def __init__(self) -> None:
        self.restart = ""
        self._number = 0

    def begin(self, restart: str) -> None:
        """Begin the ids of a restart. restart: text that identifies the restart."""
        self.restart = restart
        self._number = 0

    def _id(self, word: str, size: int) -> int:
        digest = hashlib.sha256(f"{word} {self.restart}".encode()).digest()
        return int.from_bytes(digest[:size], "big") or 1

    def generate_trace_id(self) -> int:
        """Return the trace id of the restart, a number of 16 bytes."""
        return self._id("trace", 16)

    def generate_span_id(self) -> int:
        """Return the id of the restart's next span, a number of 8 bytes."""
        self._number += 1
        return self._id(f"span {self._number}", 8)


class _LastMessage(logging.Handler):
    """Keeps the last message of OpenTelemetry's exporter, which says why the exporter could not send."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


class Tracer:
    """The tracer of one job; runs on the main thread of its process."""

    def __init__(self, link: socket.socket, run_dir: Path, endpoint: str) -> None:
        """Prepare the exporter. OTEL_SERVICE_NAME and the other variables of OpenTelemetry are respected.

        Args:
            link: socket to the supervisor.
            run_dir: the run dir.
            endpoint: URL of the collector; empty to use OpenTelemetry's variables.
        """
        self._link = link
        self._journal = JournalFollower(run_dir, on_replaced=self._forget, keeps_deleted=True)
        self._forget()
        self._exporter = OTLPSpanExporter(f"{endpoint}/v1/traces") if endpoint else OTLPSpanExporter()
        self._shown = endpoint_name(endpoint or _by_variables())
        self._ids = _Ids()
        self._made = InMemorySpanExporter()
        self._provider: TracerProvider | None = None
        self._waiting: list[ReadableSpan] = []
        self._trouble = False
        self._log = _LastMessage()
        logging.getLogger("opentelemetry").addHandler(self._log)

    def _forget(self) -> None:
        """Forget the phases gathered so far: at the start, and when another journal replaces the one that was read."""
        self._phases = RestartPhases()

    def run(self) -> None:
        """Send restarts until the supervisor closes the socket, then once more."""
        while True:
            over = is_readable(self._link, _INTERVAL_SECONDS)
            for restart in self._completed_restarts():
                self._make_spans(restart)
            self._send()
            if over:
                return

    def _completed_restarts(self) -> list[RestartTrace]:
        """Return the restarts of this run that were completed since the last call."""
        found: list[RestartTrace] = []
        with contextlib.suppress(OSError):  # the journal may be on storage that comes back
            for event in filter(sound, self._journal.events()):
                if event["event"] == "job_started":
                    found = []  # the tracers of earlier runs sent those
                found += self._phases.apply(event)
        return found

    def _make_spans(self, restart: RestartTrace) -> None:
        begin = restart.phases[0].begin
        end = restart.phases[-1].end
        self._ids.begin(f"{restart.job_id} {begin:.3f} {restart.notes.get('attempt')}")
        tracer = self._tracer(restart)
        notes = {f"ftlaunch.{name}": value for name, value in restart.notes.items()}
        root = tracer.start_span("restart", trace.set_span_in_context(trace.INVALID_SPAN), start_time=_ns(begin))
        root.set_attributes(notes)
        if restart.error:
            root.set_status(trace.StatusCode.ERROR, restart.error)
        for phase in restart.phases:
            span = tracer.start_span(phase.name, trace.set_span_in_context(root), start_time=_ns(phase.begin))
            span.end(_ns(phase.end))
        root.end(_ns(end))
        self._waiting = [*self._waiting, *self._made.get_finished_spans()][-_MAX_WAITING:]
        self._made.clear()

    def _tracer(self, restart: RestartTrace) -> trace.Tracer:
        if self._provider is None:
            named = {"service.name": "ftlaunch"} if "OTEL_SERVICE_NAME" not in os.environ else {}
            about = {**named, "host.name": restart.host, "ftlaunch.job_id": restart.job_id}
            self._provider = TracerProvider(
                resource=Resource.create(about), id_generator=self._ids, shutdown_on_exit=False
            )
            self._provider.add_span_processor(SimpleSpanProcessor(self._made))
        return self._provider.get_tracer("ftlaunch", __version__)

    def _send(self) -> None:
        if not self._waiting:
            return
        sent = self._exporter.export(self._waiting) is SpanExportResult.SUCCESS
        if sent:
            self._waiting = []
        if sent == self._trouble:
            retry = "; the job goes on, and this is tried again"
            trouble = f"cannot send traces to {self._shown}: {self._log.message}{retry}"
            self._report_trouble(f"traces go to {self._shown} again" if sent else trouble)
        self._trouble = not sent

    def _report_trouble(self, sentence: str) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone
            self._link.send(json.dumps({"trouble": sentence}).encode())


def _by_variables() -> str:
    """Return the endpoint that OpenTelemetry's own variables name."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), "http://localhost:4318")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
