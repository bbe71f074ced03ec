"""The exporter: a child process of the supervisor that reads a job's figures once a second and serves Prometheus.

The supervisor runs `python -m ftlaunch.views.metrics.exporter` with a socket as stdin. The first message is the order:

    {"run_dir", "port", "bind", "textfile", "ranks", "linger", "kinds": classes of the job's own fault rules,
     "env": variables of the ranks by which their GPUs are known}

The exporter answers with messages for the journal: {"url"} once the port answers, {"trouble": sentence} if something
cannot be done, or can be done again. At the end of stdin the exporter reads the journal once more. The end of a job is
shown for `linger` seconds, so that the next scrape sees the end. After the death of a supervisor nothing is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import write_to_textfile
from prometheus_client.registry import Collector, CollectorRegistry

from ftlaunch.policy.cause_kinds import kinds
from ftlaunch.spec.parsing import rule_parser
from ftlaunch.system.descriptors import is_readable
from ftlaunch.system.device_names import gather_names
from ftlaunch.views.metrics.reading import Sources
from ftlaunch.views.metrics.registry import ReadingCollector
from ftlaunch.views.metrics.server import MetricsServer, WrittenPages

_INTERVAL_SECONDS = 1.0  # between two readings
_CORE_SHARE = 0.01  # share of a core that readings may take; with many ranks they become rarer
_MAX_INTERVAL_SECONDS = 15.0  # at most between two readings, and between two writings of the textfile
_LISTEN_TRIES = 5  # before the port is reported as taken: an earlier exporter of the job may just be leaving
_SWITCH_SECONDS = 0.0005  # after this time a scrape may interrupt a reading


class Exporter:
    """The exporter of one job. The main thread reads; the server's threads send pages that are ready."""

    def __init__(self, link: socket.socket, asked: dict[str, Any]) -> None:
        """Prepare the first reading.

        Args:
            link: socket to the supervisor.
            asked: the order.
        """
        self._link = link
        self._asked = asked
        names = gather_names({**os.environ, **asked["env"]})
        self._sources = Sources(Path(asked["run_dir"]), sorted(kinds(rule_parser.builtin(), asked["kinds"])), names)
        self._supervisor = psutil.Process(os.getppid())
        self._me = psutil.Process()
        self._cost = 0.0  # processor seconds of the newest reading
        self._collector: Collector = CollectorRegistry()  # empty until the first reading
        self._pages = WrittenPages()
        self._server: MetricsServer | None = None
        self._refused = 0  # failed tries to listen
        self._next_file = 0.0
        self._file_error = ""

    def run(self) -> None:
        """Serve until the supervisor closes the socket, then show the end of an ended job for `linger` seconds."""
        while True:
            self._refresh()
            self._listen()
            if is_readable(self._link, self._interval()):
                break
        self._refresh(last=True)
        leave_at = time.monotonic() + (self._asked["linger"] if self._server is not None else 0.0)
        while self._sources.tally.state and (left := leave_at - time.monotonic()) > 0:
            time.sleep(min(left, _INTERVAL_SECONDS))
            self._refresh()  # another run of the job may have begun, which has an exporter of its own
        self._sources.close()

    def _interval(self) -> float:
        return min(max(_INTERVAL_SECONDS, self._cost / _CORE_SHARE), _MAX_INTERVAL_SECONDS)

    # --- reading ----------------------------------------------------------------------------------------------

    def _refresh(self, *, last: bool = False) -> None:
        began = time.process_time()
        with contextlib.suppress(OSError):  # the journal may be on storage that comes back
            reading = self._sources.read()
            self._collector = ReadingCollector(reading, self._own(), by_rank=self._asked["ranks"])
            if self._asked["port"] is not None:
                self._pages.renew(self._collector, time.monotonic())
        self._write_file(last)
        self._cost = time.process_time() - began

    def _own(self) -> dict[str, float]:
        found = {
            "ftlaunch_exporter_refreshed_timestamp_seconds": time.time(),
            "ftlaunch_exporter_refresh_seconds": self._cost,
            "ftlaunch_exporter_scrapes_total": float(self._pages.scrapes),
            "ftlaunch_exporter_skipped_lines_total": float(self._sources.skipped),
        }
        for name, process in (("supervisor", self._supervisor), ("exporter", self._me)):
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                found[f"ftlaunch_{name}_process_resident_memory_bytes"] = process.memory_info().rss
                found[f"ftlaunch_{name}_process_cpu_seconds_total"] = times.user + times.system
        return found

    # --- the port ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Try to listen, if a port is ordered and not open yet."""
        port = self._asked["port"]
        bind = self._asked["bind"]
        if port is None or self._server is not None:
            return
        try:
            self._server = MetricsServer(bind, port, self._pages)
        except OSError as error:
            self._refused += 1
            if self._refused == _LISTEN_TRIES:
                why = f"cannot serve metrics at {bind}:{port}: {(error.strerror or str(error)).lower()}"
                self._send(trouble=f"{why}; the job goes on, and this is tried again every second")
            return
        self._send(url=self._server.url)

    # --- the textfile -----------------------------------------------------------------------------------------

    def _write_file(self, last: bool) -> None:
        """Write the textfile, if one is ordered and due."""
        folder = self._asked["textfile"]
        start = self._sources.tally.start
        if folder is None or start is None or (time.monotonic() < self._next_file and not last):
            return
        self._next_file = time.monotonic() + _MAX_INTERVAL_SECONDS
        path = Path(folder, f"ftlaunch_{start['job_id']}.prom")
        error = ""
        try:
            write_to_textfile(str(path), self._collector)
        except OSError as failed:
            error = (failed.strerror or str(failed)).lower()
        if error != self._file_error:
            retry = f"; the job goes on, and this is tried again every {_MAX_INTERVAL_SECONDS:.0f} s"
            self._send(trouble=f"cannot write {path}: {error}{retry}" if error else f"metrics are in {path} again")
        self._file_error = error

    def _send(self, **message: str) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone
            self._link.send(json.dumps(message).encode())


def main() -> None:
    """Run the exporter of the job that the first message names."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    link = socket.socket(fileno=os.dup(0))
    if message := link.recv(1 << 16):
        Exporter(link, json.loads(message)).run()


if __name__ == "__main__":
    main()
