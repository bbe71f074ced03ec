"""Where events go: the journal, those who are to be told, the terminal, report.json."""

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
_MOST_WAITING = 1000  # lines
Line = dict[str, Any]
"""A line of the journal: an event's fields with its time and attempt."""
_NO_MAP: Line = {"lost": "", "sources": [], "replicas": []}  # of a job that begins with nothing


class Sink(Protocol):
    """Takes every event."""

    def take(self, event: JobEvent, line: Line | None) -> None:
        """line: what the journal says of the event; None where the event is for the terminal only."""


class JournalSink:
    """Writes events.jsonl."""

    def __init__(self, journal: Journal, files: FileThread, complain: Callable[[str], None]) -> None:
        """complain: says a sentence on the terminal, once, where the journal cannot be written; the job goes on.

        files: writes in the run dir.
        """
        self._journal, self._files, self._complain = journal, files, complain
        self._broken = False

    def take(self, event: JobEvent, line: Line | None) -> None:
        """Have the line appended."""
        if line is not None:
            written = encoded(line)
            self._files.write(lambda: self._journal.append(written), self._failed, size=len(written))

    def _failed(self, error: OSError) -> None:
        if not self._broken:
            self._broken = True
            where = f"cannot write {self._journal.path}: {error.strerror}"
            self._complain(f"{where}; going on without a journal")


class RecoverySink:
    """Writes recovery.json: where the state of the newest attempt is to come from, and then what came from where."""

    def __init__(self, spec: JobSpec, files: FileThread, complain: Callable[[str], None]) -> None:
        """files: writes in the run dir. complain: says a sentence on the terminal where the file cannot be written."""
        self._path, self._files, self._complain = spec.run_dir / RECOVERY, files, complain
        self._planned = _NO_MAP
        self._supplied: Sequence[Line] = ()  # what each node that fetches reads from where

    def take(self, event: JobEvent, line: Line | None) -> None:
        """Have the file written as the restart is planned, and again once more is known.

        That is: which node supplies what, and that all ranks have their state.
        """
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

    def _have_written(self, told: Line) -> None:
        text = json.dumps(told, indent=1) + "\n"
        self._files.write(lambda: self._write(text), self._failed, size=len(text), replaces=RECOVERY)

    def _write(self, text: str) -> None:
        written = self._path.with_name(f".{RECOVERY}")
        written.write_text(text)
        written.replace(self._path)

    def _failed(self, error: OSError) -> None:
        self._complain(f"cannot write {self._path}: {error.strerror}")


class OperationSink:
    """Writes the file that the script has named for the saves and deletions of its run."""

    def __init__(self, spec: JobSpec, files: FileThread, complain: Callable[[str], None]) -> None:
        """files: writes in the run dir. complain: says a sentence on the terminal, once, where it cannot be written."""
        self._run_dir, self._files, self._complain = spec.run_dir, files, complain
        # lines from before the script has named the file, most scripts name none; touched by the thread alone
        self._waiting = deque[str](maxlen=_MOST_WAITING)
        self._broken = False

    def take(self, event: JobEvent, line: Line | None) -> None:
        """Have the line of a save, a move or a deletion appended; at the end of the job what still waits."""
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
    """Return what an event has done to a checkpoint, as the file of the script's says it; empty for other events."""
    if isinstance(event, CheckpointCommitted):
        told = event.fields()
        return f"saved step {told['step']} ({told['why']}, {told['bytes']} bytes) to {told['path']}"
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
    """Hands events to those who are to be told."""

    def __init__(self, notifier: NotifierLink) -> None:
        self._notifier = notifier

    def take(self, event: JobEvent, line: Line | None) -> None:
        """Hand over what somebody wants to be told."""
        if line is not None:
            self._notifier.hand(line)


class TerminalSink:
    """Says events to people, and follows the ranks' output."""

    def __init__(self, terminal: Terminal, spec: JobSpec) -> None:
        self._terminal, self._spec = terminal, spec
        self._followed = followed_ranks(spec)

    def take(self, event: JobEvent, line: Line | None) -> None:
        """Say its sentence."""
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
    """Tells systemd that the ranks run, what the job said last, and that it stops."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager

    def take(self, event: JobEvent, line: Line | None) -> None:
        """Tell what concerns it."""
        if isinstance(event, AttemptStarted):
            self._manager.tell(READY)
        if sentence := event.sentence():
            self._manager.tell_status(printable(sentence))
        if isinstance(event, (StopRequested, JobEnded)):
            self._manager.tell(STOPPING)


class ReportSink:
    """Writes report.json at the end."""

    def __init__(self, spec: JobSpec, files: FileThread, complain: Callable[[str], None]) -> None:
        """files: writes in the run dir. complain: says a sentence on the terminal where the file cannot be written."""
        self._spec, self._files, self._complain = spec, files, complain
        self._path = spec.run_dir / REPORT

    def take(self, event: JobEvent, line: Line | None) -> None:
        """Have it written, once the job is over."""
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
    """The ranks whose output goes to the terminal."""
    return frozenset({0}) if spec.launch.tee_ranks is None else spec.launch.tee_ranks


def line_prefix(spec: JobSpec, rank: int, hosts: Sequence[str]) -> str:
    """Return what comes before the lines of a rank, as torchrun makes it of a template.

    Args:
        spec: of all ranks of the job.
        rank: counted over all nodes.
        hosts: of each node, in the order of the ranks, the name of the machine; none where there is one node.
    """
    node, local_rank = divmod(rank, spec.launch.nproc // spec.nodes.most)
    return Template(spec.launch.log_line_prefix_template).safe_substitute(
        role_name=spec.launch.role,
        local_rank=local_rank,
        rank=rank,
        hostname=hosts[node] if hosts else socket.gethostname(),
    )
