"""The supervisor's end of exporter, tracer and reporter: starts them, hears them, starts another for one that dies.

It hands them nothing but where the run dir is: they read for themselves. So neither can hold up the job, whatever
becomes of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.extensions import METRICS_EXPORTER, TRACER, TRAINJOB_REPORTER
from ftlaunch.reporting.events.base import JobEvent, Note
from ftlaunch.reporting.events.job import MetricsServed, OutletEnded
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import device_names
from ftlaunch.system.descriptors import is_readable
from ftlaunch.system.helper_process import DEVNULL, HelperProcess, HelperProcesses
from ftlaunch.system.loop import Loop
from ftlaunch.system.own_modules import module

_FIRST, _MOST = 1.0, 60.0  # seconds until one that has died is started again: doubled each time
_SOUND = 300.0  # one that has lived so long has not failed to start
_REPORTS = "progress"
_TRAINER = {
    "url": "KUBEFLOW_TRAINER_SERVER_URL", "ca_cert": "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "token": "KUBEFLOW_TRAINER_SERVER_TOKEN",
}  # fmt: skip
"""what Kubeflow's Trainer gives to each pod of a TrainJob whose status it takes"""
_LAST_REPORT = 5.0  # seconds that the reporter may take for the end of the job
_TRIES = 5  # deaths in a row after which there is no other


class Outlets:
    """The exporter, the tracer and the reporter of a job, where they are asked for."""

    def __init__(
        self, helpers: HelperProcesses, spec: JobSpec, loop: Loop, tell: Callable[[JobEvent], None],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """Start them; one that cannot be started is told of, and the job goes on."""
        around = helpers, loop, tell, clock
        self._watched = [_Outlet(what, program, asked, *around) for what, program, asked in _asked(spec)]

    def close(self) -> None:
        """The job is over and its journal says so: they may show the end.

        The reporter is waited for, some seconds at most: with the supervisor its pod ends, and all that runs in it.
        """
        for outlet in self._watched:
            outlet.close()
        until = time.monotonic() + _LAST_REPORT
        for outlet in self._watched:
            if outlet.what == _REPORTS:
                outlet.wait_for_end(until)


def _asked(spec: JobSpec) -> list[tuple[str, str, dict[str, Any]]]:
    found: list[tuple[str, str, dict[str, Any]]] = []
    if (metrics := spec.metrics) is not None:
        kinds = sorted({rule.kind for rule in spec.restarts.fault_rules})
        textfile = None if metrics.textfile is None else str(metrics.textfile)
        env = {name: value for name, value in spec.launch.env.items() if name in device_names.VARIABLES}
        asked = {"run_dir": str(spec.run_dir), **vars(metrics), "textfile": textfile, "kinds": kinds, "env": env}
        found.append(("metrics", METRICS_EXPORTER, asked))
    trainer = {name: os.environ.get(variable, "") for name, variable in _TRAINER.items()}
    if spec.trainjob_status == "auto" and all(trainer.values()):
        found.append((_REPORTS, TRAINJOB_REPORTER, {"run_dir": str(spec.run_dir), **trainer}))
    if spec.traces is not None:
        asked = {"run_dir": str(spec.run_dir), "endpoint": spec.traces.endpoint}
        found.append(("traces", TRACER, asked))
    return found


class _Outlet:
    """One of them."""

    def __init__(
        self, what: str, program: str, asked: Mapping[str, Any], helpers: HelperProcesses, loop: Loop,
        tell: Callable[[JobEvent], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.what, self._program, self._asked = what, program, asked
        self._helpers, self._loop, self._tell, self._clock = helpers, loop, tell, clock
        self._process: HelperProcess | None = None
        self._link: socket.socket | None = None
        self._began, self._deaths = 0.0, 0
        self._useless = False  # it has said that another one could do nothing either
        self._start()

    def _start(self) -> None:
        self._began = self._clock()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._lost(f"there is no descriptor for it: {error.strerror}")
            return
        ours.send(json.dumps(self._asked).encode())  # a new socket has room, and nobody has closed it yet
        with theirs:
            try:
                self._process = self._helpers.start(
                    module(self._program),
                    stdin=theirs.fileno(),
                    stderr=DEVNULL,  # it outlives us: whoever reads our output must not wait for it
                    outlives_us=True,  # it shows the end
                )
            except OSError as error:
                ours.close()
                self._lost(f"its process cannot be started: {error.strerror}")
                return
        ours.setblocking(False)
        self._link = ours
        self._loop.register(ours.fileno(), self._hear)

    def _hear(self) -> None:
        assert self._link is not None
        try:
            message = self._link.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        if not message:
            self._bury()
            return
        said = json.loads(message)
        self._useless = self._useless or "useless" in said
        self._tell(MetricsServed(said["url"]) if "url" in said else Note(said["trouble"]))

    def _bury(self) -> None:
        assert self._link is not None
        assert self._process is not None
        self._loop.unregister(self._link.fileno())
        self._link.close()
        status = self._process.end()
        self._link = self._process = None
        if not self._useless:
            self._lost(f"exit status {status}")

    def _lost(self, why: str) -> None:
        now = self._clock()
        self._deaths = 1 if now - self._began > _SOUND else self._deaths + 1
        again = min(_FIRST * 2 ** (self._deaths - 1), _MOST) if self._deaths < _TRIES else None
        self._tell(OutletEnded(self.what, why, again))
        if again is not None:
            self._loop.call_at(now + again, f"start {self.what}", self._start)

    def close(self) -> None:
        """Hang up."""
        if self._link is not None:
            with contextlib.suppress(OSError):  # it has died since
                self._link.shutdown(socket.SHUT_WR)

    def wait_for_end(self, until: float) -> None:
        """Wait until it has ended, or until a monotonic moment; what it says meanwhile is told."""
        while self._link is not None and is_readable(self._link, max(until - time.monotonic(), 0.0)):
            try:
                message = self._link.recv(1 << 16)
            except OSError:
                return
            if not message:
                return
            self._tell(Note(json.loads(message)["trouble"]))
