"""Starts the outlets of a job (metrics exporter, tracer, TrainJob reporter), and restarts an outlet that dies.

An outlet is a process of its own. It learns from the supervisor where the run dir is, and reads the journal by itself,
so that no outlet can hold up the job. The supervisor (or the head of several nodes) makes one `Outlets`, in its main
thread.
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

_FIRST_RESTART_SECONDS = 1.0
"""time until an outlet that has died is started again; doubled with each death in a row: 1, 2, 4 and 8 s"""
_SOUND_SECONDS = 300.0
"""lifetime after which the death of an outlet counts as the first in a row"""
_PROGRESS = "progress"
"""what the TrainJob reporter tells"""
_TRAINER = {
    "url": "KUBEFLOW_TRAINER_SERVER_URL", "ca_cert": "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "token": "KUBEFLOW_TRAINER_SERVER_TOKEN",
}  # fmt: skip
"""environment variables that Kubeflow's Trainer sets in each pod of a TrainJob that may report its status"""
_LAST_REPORT_SECONDS = 5.0
"""how long the TrainJob reporter may take to report the end of the job"""
_MOST_DEATHS = 5
"""deaths in a row after which an outlet is not started again"""


class Outlets:
    """The outlets that a job asks for."""

    def __init__(
        self, helpers: HelperProcesses, spec: JobSpec, loop: Loop, report: Callable[[JobEvent], None],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """Start the outlets. An outlet that cannot be started is reported, and the job goes on.

        Args:
            helpers: starts the processes.
            spec: the job.
            loop: waits for the outlets' messages and for the time of a restart.
            report: reports an event.
            clock: returns monotonic seconds.
        """
        self._watched = [
            _Outlet(
                what=what, program=program, settings=settings, helpers=helpers, loop=loop, report=report, clock=clock
            )
            for what, program, settings in _wanted_outlets(spec)
        ]

    def close(self) -> None:
        """Tell the outlets that the job is over, once the journal has its end: they show the end and leave.

        The TrainJob reporter is waited for, up to `_LAST_REPORT_SECONDS`, because the pod ends with the supervisor.
        """
        for outlet in self._watched:
            outlet.close()
        deadline = time.monotonic() + _LAST_REPORT_SECONDS
        for outlet in self._watched:
            if outlet.what == _PROGRESS:
                outlet.wait_for_end(deadline)


def _wanted_outlets(spec: JobSpec) -> list[tuple[str, str, dict[str, Any]]]:
    """Return for each outlet that a job asks for: what the outlet tells, its module, and its settings (JSON-ready)."""
    wanted: list[tuple[str, str, dict[str, Any]]] = []
    if (metrics := spec.metrics) is not None:
        kinds = sorted({rule.kind for rule in spec.restarts.fault_rules})
        textfile = None if metrics.textfile is None else str(metrics.textfile)
        env = {name: value for name, value in spec.launch.env.items() if name in device_names.VARIABLES}
        settings = {"run_dir": str(spec.run_dir), **vars(metrics), "textfile": textfile, "kinds": kinds, "env": env}
        wanted.append(("metrics", METRICS_EXPORTER, settings))
    trainer = {name: os.environ.get(variable, "") for name, variable in _TRAINER.items()}
    if spec.trainjob_status == "auto" and all(trainer.values()):
        wanted.append((_PROGRESS, TRAINJOB_REPORTER, {"run_dir": str(spec.run_dir), **trainer}))
    if spec.traces is not None:
        settings = {"run_dir": str(spec.run_dir), "endpoint": spec.traces.endpoint}
        wanted.append(("traces", TRACER, settings))
    return wanted


class _Outlet:
    """Runs one outlet, and starts it again after its death, a few times in a row at most."""

    def __init__(
        self, what: str, program: str, settings: Mapping[str, Any], helpers: HelperProcesses, loop: Loop,
        report: Callable[[JobEvent], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.what = what
        self._program = program
        self._settings = settings
        self._helpers = helpers
        self._loop = loop
        self._report = report
        self._clock = clock
        self._process: HelperProcess | None = None
        self._link: socket.socket | None = None
        self._began = 0.0
        self._deaths = 0  # in a row
        self._useless = False  # whether the outlet has said that a restart could not help
        self._start()

    def _start(self) -> None:
        self._began = self._clock()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._lost(f"there is no descriptor for it: {error.strerror}")
            return
        ours.send(json.dumps(self._settings).encode())  # a new socket has room, and nobody has closed it yet
        with theirs:
            try:
                self._process = self._helpers.start(
                    module(self._program),
                    stdin=theirs.fileno(),
                    stderr=DEVNULL,  # the outlet outlives us: a reader of our output must not wait for its end
                    outlives_us=True,  # to show the end of the job
                )
            except OSError as error:
                ours.close()
                self._lost(f"its process cannot be started: {error.strerror}")
                return
        ours.setblocking(False)
        self._link = ours
        self._loop.register(ours.fileno(), self._on_message)

    def _on_message(self) -> None:
        assert self._link is not None
        try:
            message = self._link.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        if not message:
            self._on_death()
            return
        self._report_news(message)

    def _report_news(self, message: bytes) -> None:
        """Report what the outlet has sent: that its port answers, or what is wrong."""
        news = json.loads(message)
        self._useless = self._useless or "useless" in news
        self._report(MetricsServed(news["url"]) if "url" in news else Note(news["trouble"]))

    def _on_death(self) -> None:
        """Reap the outlet that has hung up, and have it started again unless this could not help."""
        assert self._link is not None
        assert self._process is not None
        self._loop.unregister(self._link.fileno())
        self._link.close()
        status = self._process.end()
        self._link = self._process = None
        if not self._useless:
            self._lost(f"exit status {status}")

    def _lost(self, why: str) -> None:
        """Report that the outlet does not run, and schedule the next start unless there were too many."""
        now = self._clock()
        self._deaths = 1 if now - self._began > _SOUND_SECONDS else self._deaths + 1
        delay_seconds = None
        if self._deaths < _MOST_DEATHS:
            delay_seconds = _FIRST_RESTART_SECONDS * 2 ** (self._deaths - 1)
        self._report(OutletEnded(self.what, why, delay_seconds))
        if delay_seconds is not None:
            self._loop.call_at(now + delay_seconds, f"start {self.what}", self._start)

    def close(self) -> None:
        """Hang up, which tells the outlet that the job is over."""
        if self._link is not None:
            with contextlib.suppress(OSError):  # the outlet may have died since
                self._link.shutdown(socket.SHUT_WR)

    def wait_for_end(self, deadline: float) -> None:
        """Wait until the outlet has ended, or until monotonic `deadline`; report its messages meanwhile."""
        while self._link is not None and is_readable(self._link, max(deadline - time.monotonic(), 0.0)):
            try:
                message = self._link.recv(1 << 16)
            except OSError:
                return
            if not message:
                return
            self._report_news(message)
