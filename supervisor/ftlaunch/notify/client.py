"""The supervisor's end of the notifier: hands over notices, and learns whether they were delivered.

Everything runs in the event loop and never waits, except `close` at the end of the job, which waits for little more
than FAREWELL_SECONDS at most.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ftlaunch.common.masking import secret_values
from ftlaunch.notify.message import SoFar, apply_event
from ftlaunch.notify.notification import KIND_OF, payload
from ftlaunch.notify.notifier import FAREWELL_SECONDS
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import processes
from ftlaunch.system.descriptors import is_readable
from ftlaunch.system.helper_process import HelperProcess, HelperProcesses
from ftlaunch.system.own_modules import module

PAGE = "report.html"
"""name of the report; reporting/page_at_end.py, which this module may not import, defines it"""
_MARGIN_SECONDS = 1.0  # that the notifier gets to exit after the farewell


@dataclass(frozen=True)
class DeliveryOutcome:
    """The result of delivering a notice to a target."""

    kind: str
    """kind of the event, as `on` of the spec calls it"""
    target: str
    """name of the target"""
    error: str
    """why the delivery failed; empty if the target took the notice"""
    tries: int = 0
    """number of tries"""
    seconds: float = 0.0
    """seconds from the first try to the result"""


class NotifierLink:
    """Passes notices to the notifier process. Without a target there is no process."""

    def __init__(self, helpers: HelperProcesses, spec: JobSpec, environ: dict[str, str]) -> None:
        """Start the notifier, so that the first incident need not wait for its start.

        Args:
            helpers: starts and reaps the notifier.
            spec: the job, with the targets.
            environ: the environment that the ranks inherit. The values of its secret variables are masked in notices.
        """
        self._targets = spec.notify
        self._job = {"job_id": spec.job_id, "run_dir": str(spec.run_dir), "host": socket.gethostname()}
        self._page = str(spec.run_dir / PAGE) if spec.report_page else ""
        self._secrets = secret_values(environ, ()) | secret_values(spec.launch.env, spec.launch.args)
        self._helpers = helpers
        self._process: HelperProcess | None = None
        self._socket: socket.socket | None = None
        self._waiting: dict[int, tuple[str, str]] = {}  # kind and target's name, by id of the notice
        self._lost: list[DeliveryOutcome] = []  # failures that `outcomes` has not returned yet
        self._last_id = 0
        self._so_far = SoFar()
        if self._targets:
            self._start()

    def hand(self, line: dict[str, Any]) -> None:
        """Send a journalled event to every target that asks for its kind.

        Args:
            line: the event as the journal has it.
        """
        if not self._targets:
            return
        so_far = self._so_far
        self._so_far = apply_event(so_far, line)
        kind = KIND_OF.get(line["event"])
        for number, target in enumerate(self._targets):
            if kind is not None and kind in target.on:
                notice = payload(
                    job=self._job,
                    line=line,
                    secrets=self._secrets,
                    so_far=so_far,
                    link=target.link,
                    page=self._page,
                )
                self._send(kind, number, json.dumps(notice))

    def _send(self, kind: str, number: int, body: str) -> None:
        """Send a notice for the target with this number to the notifier, or record why that is impossible."""
        target = self._targets[number]
        self._last_id += 1
        delivery = target.whom.delivery(body, target.timeout)
        message = {
            "id": self._last_id,
            "to": number,
            **asdict(delivery),
            "timeout": target.timeout,
            "retries": target.retries,
        }
        error = self._send_message(json.dumps(message).encode())
        if error:
            self._lost.append(DeliveryOutcome(kind, target.whom.name, error))
        else:
            self._waiting[self._last_id] = (kind, target.whom.name)

    def _send_message(self, message: bytes) -> str:
        """Send a message to the notifier, which is replaced if it has died. Return why that failed, or nothing."""
        if self._socket is not None:
            try:
                self._socket.send(message)
                return ""
            except ConnectionError:
                self._lost += self._bury()
            except OSError as error:  # the notifier does not read, and its socket is full
                return f"the notifier takes nothing: {error.strerror}"
        self._start(message)
        return "the notifier cannot be started" if self._socket is None else ""

    def _start(self, *messages: bytes) -> None:
        """Start a notifier with these messages in its socket. If that fails, `_socket` stays None."""
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
                    outlives_us=True,  # the notifier delivers what it was given even if the supervisor is killed
                )
            except OSError:
                ours.close()
                return
        ours.setblocking(False)
        self._socket = ours

    def outcomes(self) -> list[DeliveryOutcome]:
        """Return the results that have come since the last call. Never waits."""
        outcomes = self._lost
        self._lost = []
        if self._waiting:
            outcomes += self._receive()
        return outcomes

    def _receive(self) -> Iterator[DeliveryOutcome]:
        """Yield the results that the notifier has sent; if the notifier has died, the notices it had count as lost."""
        while self._socket is not None:
            try:
                message = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except ConnectionError:
                message = b""
            if not message:
                yield from self._bury()
                return
            answer = json.loads(message)
            kind, target = self._waiting.pop(answer["id"])
            yield DeliveryOutcome(
                kind=kind,
                target=target,
                error=answer["error"],
                tries=answer["tries"],
                seconds=answer["seconds"],
            )

    def _bury(self) -> list[DeliveryOutcome]:
        """Reap a notifier that is gone, and return its unanswered notices as failures.

        The next notice starts another notifier.
        """
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        status = self._process.end()
        self._socket = None
        self._process = None
        lost = [
            DeliveryOutcome(kind, target, f"the notifier ended ({status}) before it had answered")
            for kind, target in self._waiting.values()
        ]
        self._waiting = {}
        return lost

    def close(self) -> list[DeliveryOutcome]:
        """Let the notifier finish, for FAREWELL_SECONDS + _MARGIN_SECONDS at most, and return the last results."""
        outcomes = self.outcomes()
        if self._socket is None:
            return outcomes
        self._socket.shutdown(socket.SHUT_WR)
        until = time.monotonic() + FAREWELL_SECONDS + _MARGIN_SECONDS
        while self._socket is not None and is_readable(self._socket, until - time.monotonic()):
            outcomes += self._receive()
        if self._socket is not None:
            outcomes += self._bury()
            # commands that the notifier had started are orphans now, and have become our children
            processes.kill_descendants(self._helpers.pids, [])
        return outcomes
