"""Hands each event to every sink: journal, notices, terminal, report.json."""

from __future__ import annotations

from collections.abc import Sequence

from ftlaunch.history.journal import Journal
from ftlaunch.notify.client import DeliveryOutcome, NotifierLink
from ftlaunch.reporting.events.base import Complaint, JobEvent, Note
from ftlaunch.reporting.events.job import Notified, NotifyFailed
from ftlaunch.reporting.events.ranks import AttemptStarted
from ftlaunch.reporting.sinks import JournalSink, NoticeSink, RecoverySink, ReportSink, Sink, TerminalSink
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.job_spec import JobSpec


class Reporter:
    """Tells what happens. No decision asks it."""

    def __init__(
        self, spec: JobSpec, journal: Journal, notifier: NotifierLink, terminal: Terminal, more: Sequence[Sink] = ()
    ) -> None:
        """more: sinks of this place only."""
        self._journal, self._notifier = journal, notifier
        self._sinks: Sequence[Sink] = (
            JournalSink(journal, self.complain),
            NoticeSink(notifier),
            TerminalSink(terminal, spec),
            ReportSink(spec, self.complain),
            RecoverySink(spec, self.complain),
            *more,
        )

    def tell(self, event: JobEvent) -> None:
        """Hand an event to all sinks."""
        if isinstance(event, AttemptStarted):
            self._journal.attempt = event.attempt  # of this event and of all after it
        line = self._journal.stamped(event.name, **event.fields()) if event.name else None
        for sink in self._sinks:
            sink.take(event, line)

    def say(self, sentence: str) -> None:
        """A sentence for the terminal."""
        self.tell(Note(sentence))

    def complain(self, sentence: str) -> None:
        """The same, of something that cannot be done."""
        self.tell(Complaint(sentence))

    def tell_outcomes(self) -> None:
        """Tell what became of notices. Never waits."""
        self._tell_of(self._notifier.outcomes())

    def farewell(self) -> None:
        """Let the last notices go out; waits a few seconds at most."""
        self._tell_of(self._notifier.close())

    def _tell_of(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        for outcome in outcomes:
            self.tell(NotifyFailed(outcome) if outcome.error else Notified(outcome))
