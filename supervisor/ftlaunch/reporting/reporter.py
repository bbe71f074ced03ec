"""Hands each event to every sink: journal, notices, terminal, report.json."""

from __future__ import annotations

from collections.abc import Sequence

from ftlaunch.history.journal import Journal
from ftlaunch.notify.client import DeliveryOutcome, NotifierLink
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.base import Complaint, JobEvent, Note
from ftlaunch.reporting.events.job import Notified, NotifyFailed
from ftlaunch.reporting.events.ranks import AttemptStarted
from ftlaunch.reporting.file_silence import FileSilence
from ftlaunch.reporting.sinks import (
    JournalSink,
    NoticeSink,
    OperationSink,
    RecoverySink,
    ReportSink,
    Sink,
    TerminalSink,
)
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThreads

_LAST_WRITES = 10.0
"""seconds that the end of a job waits for a file system that does not answer"""


class Reporter:
    """Tells what happens. No decision asks it."""

    def __init__(
        self,
        spec: JobSpec,
        journal: Journal,
        files: FileThreads,
        notifier: NotifierLink,
        terminal: Terminal,
        more: Sequence[Sink] = (),
    ) -> None:
        """files: of the run dir at least. more: sinks of this place only."""
        self._journal, self._notifier, self._files = journal, notifier, files
        in_run_dir = files.of(spec.run_dir)
        self._sinks: Sequence[Sink] = (
            JournalSink(journal, in_run_dir, self.complain),
            NoticeSink(notifier),
            TerminalSink(terminal, spec),
            ReportSink(spec, in_run_dir, self.complain),
            OperationSink(spec, in_run_dir, self.complain),
            RecoverySink(spec, in_run_dir, self.complain),
            *more,
        )
        self._silence = FileSilence(files, self.tell)

    def tell(self, event: JobEvent) -> None:
        """Hand an event to all sinks."""
        if isinstance(event, AttemptStarted):
            self._journal.attempt = event.attempt  # of this event and of all after it
        line = self._journal.stamped(event.name, **event.fields()) if event.name else None
        for sink in self._sinks:
            sink.take(event, line)

    def say(self, sentence: str) -> None:
        """Say a sentence on the terminal."""
        self.tell(Note(sentence))

    def complain(self, sentence: str) -> None:
        """Say on the terminal, as a warning, that something cannot be done."""
        self.tell(Complaint(sentence))

    def tell_outcomes(self) -> None:
        """Tell what became of notices, and of what was to be written. Never waits."""
        self._tell_of(self._notifier.outcomes())
        self._silence.look()

    def farewell(self) -> None:
        """Let the last notices go out; waits a few seconds at most."""
        self._tell_of(self._notifier.close())

    def write_all(self) -> bool:
        """Wait a few seconds at most until all is written; return whether it is. Else it is told."""
        if not (is_written := self._files.flush(_LAST_WRITES)):
            for thread in self._files.threads:
                if thread.waiting:
                    self.complain(messages.unwritten(thread.where, thread.waiting, thread.silent_seconds))
        self._silence.look()
        return is_written

    def _tell_of(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        for outcome in outcomes:
            self.tell(NotifyFailed(outcome) if outcome.error else Notified(outcome))
