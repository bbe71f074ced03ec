"""Sinks, which take every event: journal, recovery.json, operation log, notices, terminal, systemd, report.json.

To add a sink, write a class with the method of `Sink` and add it to the list in `reporting/reporter.py`. The reporter
calls `handle` in the main thread, so a sink must not wait; files are written by a FileThread.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable, Sequence
from string import Template
from typing import Any, Protocol

from ftlaunch.common.formatting import printable
from ftlaunch.history.journal import Journal, encoded
from ftlaunch.history.recovery_view import RECOVERY
from ftlaunch.notify.client import NotifierLink
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import (
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
    CheckpointMoved,
    CheckpointRejected,
    CheckpointUnfinished,
)
from ftlaunch.reporting.events.copies import FetchedFromPeers, FetchPlanned, RestorePlanned
from ftlaunch.reporting.events.incidents import HangSeen
from ftlaunch.reporting.events.job import JobEnded, StopRequested
from ftlaunch.reporting.events.ranks import AttemptStarted, Resumed
from ftlaunch.reporting.messages import PREFIX
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.systemd import READY, STOPPING, ServiceManager
from ftlaunch_contract.checkpoint import operation_log
from ftlaunch_contract.files import atomic

REPORT = "report.json"
_MOST_WAITING = 1000
"""lines of the operation log that are kept until the script has named the file"""
Line = dict[str, Any]
"""A line of the journal: an event's fields with the time and the attempt of the event."""
_NO_MAP: Line = {"lost": "", "sources": [], "replicas": []}
"""the restore map of a job that begins without a state"""


class Sink(Protocol):
    """Handles every event of a job."""

    def handle(self, event: JobEvent, line: Line | None) -> None:
        """Handle an event. Must not wait.

        Args:
            event: what has happened.
            line: what the journal says about the event; None: the event is for the terminal only.
        """


class JournalSink:
    """Writes events.jsonl."""

    def __init__(self, journal: Journal, files: FileThread, complain: Callable[[str], None]) -> None:
        """Write to a journal.

        Args:
            journal: the journal.
            files: the thread that writes in the run dir.
            complain: called once with a sentence if the journal cannot be written; the job goes on.
        """
        self._journal = journal
        self._files = files
        self._complain = complain
        self._broken = False

    def handle(self, event: JobEvent, line: Line | None) -> None:
        """Have the line appended to the journal."""
        if line is not None:
            written = encoded(line)
            self._files.write(lambda: self._journal.append(written), self._failed, size=len(written))

    def _failed(self, error: OSError) -> None:
        if not self._broken:
            self._broken = True
            where = f"cannot write {self._journal.path}: {error.strerror}"
            self._complain(f"{where}; going on without a journal")


class RecoverySink:
    """Writes recovery.json: from where the newest attempt's ranks take their state, first as planned, then as done.

    `ftctl recovery` shows this file.
    """

    def __init__(self, spec: JobSpec, files: FileThread, complain: Callable[[str], None]) -> None:
        """Write into the run dir of a job.

        Args:
            spec: the job.
            files: the thread that writes in the run dir.
            complain: called with a sentence if the file cannot be written.
        """
        self._path = spec.run_dir / RECOVERY
        self._files = files
        self._complain = complain
        self._planned = _NO_MAP
        self._supplied: Sequence[Line] = ()  # for each node that fetches: what comes from where

    def handle(self, event: JobEvent, line: Line | None) -> None:
        """Have the file written when a restart is planned, when a fetch is planned, and when all ranks have a state."""
        if isinstance(event, FetchPlanned):
            self._supplied = event.nodes
            self._have_written({**self._planned, "done": False, "fetched": list(event.nodes)})
        elif isinstance(event, FetchedFromPeers):
            self._supplied = event.nodes
        elif isinstance(event, RestorePlanned) and line is not None:
            self._planned = line
            self._supplied = ()
            self._have_written({**line, "done": False, "fetched": []})
        elif isinstance(event, Resumed) and line is not None:
            self._have_written({**self._planned, **line, "done": True, "fetched": list(self._supplied)})
            self._planned = _NO_MAP

    def _have_written(self, content: Line) -> None:
        text = json.dumps(content, indent=1) + "\n"
        self._files.write(lambda: self._write(text), self._failed, size=len(text), replaces=RECOVERY)

    def _write(self, text: str) -> None:
        written = self._path.with_name(f".{RECOVERY}")
        written.write_text(text)
        written.replace(self._path)

    def _failed(self, error: OSError) -> None:
        self._complain(f"cannot write {self._path}: {error.strerror}")


class OperationSink:
    """Writes the operation log: the file that the script has named for the saves, moves and deletions of its run."""

    def __init__(self, spec: JobSpec, files: FileThread, complain: Callable[[str], None]) -> None:
        """Keep lines until the script has named a file; most scripts name none.

        Args:
            spec: the job.
            files: the thread that writes in the run dir.
            complain: called once with a sentence if the file cannot be written.
        """
        self._run_dir = spec.run_dir
        self._files = files
        self._complain = complain
        self._waiting = deque[str](maxlen=_MOST_WAITING)  # touched by the file thread only
        self._broken = False

    def handle(self, event: JobEvent, line: Line | None) -> None:
        """Have the line of a save, move or deletion appended. At the end of the job, append the lines that wait."""
        if sentence := operation(event):
            text = operation_log.stamped(sentence)
            self._files.write(lambda: self._append(text), self._failed, size=len(text))
        elif isinstance(event, JobEnded):
            self._files.write(lambda: self._append(""), self._failed)

    def _append(self, text: str) -> None:
        if text:
            self._waiting.append(text)
        path = operation_log.read_path(self._run_dir)
        if path is not None and self._waiting:
            operation_log.append(path, self._waiting)
            self._waiting.clear()

    def _failed(self, error: OSError) -> None:
        if not self._broken:
            self._broken = True
            self._complain(f"cannot write {error.filename}, which the script has named for saves: {error.strerror}")


def operation(event: JobEvent) -> str:
    """Return what an event has done to a checkpoint, as the operation log says this; "" for other events."""
    if isinstance(event, CheckpointCommitted):
        fields = event.fields()
        return f"saved step {fields['step']} ({fields['why']}, {fields['bytes']} bytes) to {fields['path']}"
    if isinstance(event, CheckpointFailed):
        return event.sentence()
    if isinstance(event, CheckpointDeleted):
        return f"deleted step {event.step}, {event.path} ({event.why}, {event.keep} are kept)"
    if isinstance(event, CheckpointMoved):
        return f"moved step {event.step} from {event.path} to {event.to} ({event.why})"
    if isinstance(event, CheckpointRejected):
        return f"refused step {event.entry['step']}: {event.entry['why']}; it is now {event.entry['to']}"
    if isinstance(event, CheckpointUnfinished):
        return f"deleted what an interrupted save or deletion had left of step {event.step}, {event.path}"
    return ""


class NoticeSink:
    """Hands events to the process that delivers notices."""

    def __init__(self, notifier: NotifierLink) -> None:
        self._notifier = notifier

    def handle(self, event: JobEvent, line: Line | None) -> None:
        """Hand over the event, which the notifier delivers to the targets that want this kind of event."""
        if line is not None:
            self._notifier.hand(line)


class TerminalSink:
    """Shows the sentences of events on the terminal, and follows the ranks' output."""

    def __init__(self, terminal: Terminal, spec: JobSpec) -> None:
        self._terminal = terminal
        self._spec = spec
        self._followed = followed_ranks(spec)

    def handle(self, event: JobEvent, line: Line | None) -> None:
        """Show the event's lines and sentence; follow the logs of a new attempt."""
        if isinstance(event, HangSeen):
            self._terminal.cut()
        if isinstance(event, AttemptStarted):
            logs = {rank: log for rank, log in event.logs.items() if rank in self._followed}
            paths = {rank: path for rank, (path, _) in logs.items()}
            begins = {rank: begin for rank, (_, begin) in logs.items()}
            prefixes = {}
            if self._spec.launch.log_line_prefix_template:
                prefixes = {rank: line_prefix(self._spec, rank, event.hosts) for rank in logs}
            self._terminal.follow(paths, begins, prefixes)
        for text in event.lines():
            self._terminal.say(text, event.priority)
        if sentence := event.sentence():
            self._terminal.say(PREFIX + sentence, event.priority)


class ServiceSink:
    """Tells systemd that the ranks run, what the job has reported last, and that the job stops."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager

    def handle(self, event: JobEvent, line: Line | None) -> None:
        """Tell systemd about the start of an attempt, the event's sentence, and the end of the job."""
        if isinstance(event, AttemptStarted):
            self._manager.notify(READY)
        if sentence := event.sentence():
            self._manager.notify_status(printable(sentence))
        if isinstance(event, (StopRequested, JobEnded)):
            self._manager.notify(STOPPING)


class ReportSink:
    """Writes report.json at the end of the job."""

    def __init__(self, spec: JobSpec, files: FileThread, complain: Callable[[str], None]) -> None:
        """Write into the run dir of a job.

        Args:
            spec: the job.
            files: the thread that writes in the run dir.
            complain: called with a sentence if the file cannot be written.
        """
        self._spec = spec
        self._files = files
        self._complain = complain
        self._path = spec.run_dir / REPORT

    def handle(self, event: JobEvent, line: Line | None) -> None:
        """Have the file written once the job is over."""
        if not isinstance(event, JobEnded):
            return
        summary = {
            "job_id": self._spec.job_id,
            "state": event.state.value,
            "code": event.code,
            "committed": event.committed,
        }
        content = json.dumps(summary, indent=1).encode() + b"\n"
        self._files.write(lambda: atomic.replace_durable(self._path, content), self._failed, replaces=REPORT)

    def _failed(self, error: OSError) -> None:
        self._complain(f"cannot write {self._path}: {error.strerror}")


def followed_ranks(spec: JobSpec) -> frozenset[int]:
    """Return the ranks whose output goes to the terminal."""
    return frozenset({0}) if spec.launch.tee_ranks is None else spec.launch.tee_ranks


def line_prefix(spec: JobSpec, rank: int, hosts: Sequence[str]) -> str:
    """Return the prefix of a rank's output lines, made from the template as torchrun makes it.

    Args:
        spec: the job, with the ranks of all nodes.
        rank: number of the rank, over all nodes.
        hosts: host names of the nodes, in the order of the ranks; empty: the job has one node.
    """
    node, local_rank = divmod(rank, spec.launch.nproc // spec.nodes.most)
    return Template(spec.launch.log_line_prefix_template).safe_substitute(
        role_name=spec.launch.role,
        local_rank=local_rank,
        rank=rank,
        hostname=hosts[node] if hosts else socket.gethostname(),
    )
