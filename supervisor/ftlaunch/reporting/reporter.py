"""Hands each event of a job to every sink: journal, notices, terminal, report.json and others.

`engine/main.py` and the head of several nodes make one Reporter for a job; all calls come from the main thread. Sinks
never wait for a file system: `FileThreads` write beside the loop.
"""

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

_LAST_WRITES_SECONDS = 10.0
"""how long the end of a job waits for a file system that does not answer"""


class Reporter:
    """Reports events. Nothing that is decided about the job depends on the reporter."""

    def __init__(
        self,
        spec: JobSpec,
        journal: Journal,
        files: FileThreads,
        notifier: NotifierLink,
        terminal: Terminal,
        more: Sequence[Sink] = (),
    ) -> None:
        """Make the sinks of a job.

        Args:
            spec: the job.
            journal: the journal of the run, open for appending.
            files: the threads that write files, one of them in the run dir.
            notifier: the process that delivers notices.
            terminal: shows sentences and the ranks' output.
            more: further sinks.
        """
        self._journal = journal
        self._notifier = notifier
        self._files = files
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
        self._silence = FileSilence(files, self.report)

    def report(self, event: JobEvent) -> None:
        """Hand an event to all sinks."""
        if isinstance(event, AttemptStarted):
            self._journal.attempt = event.attempt  # counts for this event and all later ones
        line = self._journal.stamped(event.name, **event.fields()) if event.name else None
        for sink in self._sinks:
            sink.handle(event, line)

    def say(self, sentence: str) -> None:
        """Show a sentence on the terminal."""
        self.report(Note(sentence))

    def complain(self, sentence: str) -> None:
        """Show on the terminal, as a warning, that something cannot be done."""
        self.report(Complaint(sentence))

    def report_outcomes(self) -> None:
        """Report which notices were delivered and which failed, and file systems that do not answer. Never waits."""
        self._report_deliveries(self._notifier.outcomes())
        self._silence.poll()

    def farewell(self) -> None:
        """Wait a few seconds at most for the last notices to go out, and report the outcomes."""
        self._report_deliveries(self._notifier.close())

    def write_all(self) -> bool:
        """Wait up to `_LAST_WRITES_SECONDS` until all writes are done; report file systems whose writes still wait.

        Returns:
            Whether all is written.
        """
        if not (is_written := self._files.flush(_LAST_WRITES_SECONDS)):
            for thread in self._files.threads:
                if thread.waiting:
                    self.complain(messages.unwritten(thread.where, thread.waiting, thread.silent_seconds))
        self._silence.poll()
        return is_written

    def _report_deliveries(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        for outcome in outcomes:
            self.report(NotifyFailed(outcome) if outcome.error else Notified(outcome))
