"""The supervisor's end of the notifier: hands over notices, hears what became of them, never waits.

Only the end of a job waits, for FAREWELL seconds and a little at most.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ftlaunch.common.masking import secret_values
from ftlaunch.notify.message import SoFar, heard
from ftlaunch.notify.notification import KIND_OF, payload
from ftlaunch.notify.notifier import FAREWELL
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import processes
from ftlaunch.system.descriptors import is_readable
from ftlaunch.system.helper_process import HelperProcess, HelperProcesses
from ftlaunch.system.own_modules import module

_PAGE = "report.html"  # see reporting/page_at_end.py, which lies above
_MARGIN = 1.0  # seconds that the notifier gets to leave after FAREWELL


@dataclass(frozen=True)
class DeliveryOutcome:
    """What became of a notice."""

    kind: str
    target: str
    error: str  # "": the target took it
    tries: int = 0
    seconds: float = 0.0


class NotifierLink:
    """The targets of notices, and the process that tells them; without a target there is no process."""

    def __init__(self, helpers: HelperProcesses, spec: JobSpec, environ: dict[str, str]) -> None:
        """environ: what the ranks inherit; what its secret variables hold is masked."""
        self._targets = spec.notify
        self._job = {"job_id": spec.job_id, "run_dir": str(spec.run_dir), "host": socket.gethostname()}
        self._page = str(spec.run_dir / _PAGE) if spec.report_page else ""
        self._secrets = secret_values(environ, ()) | secret_values(spec.launch.env, spec.launch.args)
        self._helpers = helpers
        self._process: HelperProcess | None = None
        self._socket: socket.socket | None = None
        self._waiting: dict[int, tuple[str, str]] = {}  # id -> kind, target
        self._lost: list[DeliveryOutcome] = []
        self._number = 0
        self._so_far = SoFar()
        if self._targets:
            self._start()  # now, so that an incident need not wait for it

    def hand(self, line: dict[str, Any]) -> None:
        """Take a journalled event, and pass it on to every target that asks for its kind."""
        if not self._targets:
            return
        so_far, self._so_far = self._so_far, heard(self._so_far, line)
        kind = KIND_OF.get(line["event"])
        for number, target in enumerate(self._targets):
            if kind is not None and kind in target.on:
                told = payload(self._job, line, self._secrets, so_far, target.link, self._page)
                self._send(kind, number, json.dumps(told))

    def _send(self, kind: str, number: int, body: str) -> None:
        target = self._targets[number]
        self._number += 1
        delivery = target.whom.delivery(body, target.timeout)
        message = {
            "id": self._number,
            "to": number,
            **asdict(delivery),
            "timeout": target.timeout,
            "retries": target.retries,
        }
        error = self._pass(json.dumps(message).encode())
        if error:
            self._lost.append(DeliveryOutcome(kind, target.whom.name, error))
        else:
            self._waiting[self._number] = (kind, target.whom.name)

    def _pass(self, message: bytes) -> str:
        """Send a message; returns why it could not be sent. A notifier that has died is replaced."""
        if self._socket is not None:
            try:
                self._socket.send(message)
                return ""
            except ConnectionError:
                self._lost += self._buried()
            except OSError as error:  # the notifier does not read, and its socket is full
                return f"the notifier takes nothing: {error.strerror}"
        self._start(message)
        return "the notifier cannot be started" if self._socket is None else ""

    def _start(self, *messages: bytes) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        for message in messages:
            ours.send(message)  # a new socket has room, and nobody has closed it yet
        with theirs:
            try:
                self._process = self._helpers.start(
                    module("ftlaunch.notify.notifier"),
                    stdin=theirs.fileno(),
                    outlives_us=True,  # it tells what it was given
                )
            except OSError:
                ours.close()
                return
        ours.setblocking(False)
        self._socket = ours

    def outcomes(self) -> list[DeliveryOutcome]:
        """What became of notices since the last call; never waits."""
        heard, self._lost = self._lost, []
        return [*heard, *self._hear()] if self._waiting else heard

    def _hear(self) -> Iterator[DeliveryOutcome]:
        while self._socket is not None:
            try:
                message = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except ConnectionError:
                message = b""
            if not message:
                yield from self._buried()
                return
            answer = json.loads(message)
            kind, target = self._waiting.pop(answer["id"])
            yield DeliveryOutcome(kind, target, answer["error"], answer["tries"], answer["seconds"])

    def _buried(self) -> list[DeliveryOutcome]:
        """Reap a notifier that is gone; the notices it held are lost. The next notice starts another notifier."""
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        status = self._process.end()
        self._socket = self._process = None
        gone = [DeliveryOutcome(kind, target, f"the notifier ended ({status}) before it had answered")
                for kind, target in self._waiting.values()]  # fmt: skip
        self._waiting = {}
        return gone

    def close(self) -> list[DeliveryOutcome]:
        """Let the notifier finish, for FAREWELL + _MARGIN seconds at most; returns what became of the last notices."""
        heard = self.outcomes()
        if self._socket is None:
            return heard
        self._socket.shutdown(socket.SHUT_WR)
        until = time.monotonic() + FAREWELL + _MARGIN
        while self._socket is not None and is_readable(self._socket, until - time.monotonic()):
            heard += self._hear()
        if self._socket is not None:
            heard += self._buried()
            # the notifier's commands, orphaned, have become our children
            processes.kill_descendants(self._helpers.pids, [])
        return heard
