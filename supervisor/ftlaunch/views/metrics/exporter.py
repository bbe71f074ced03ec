"""The exporter: a process that reads a job's figures once a second and hands them to Prometheus.

Runs as `python -m ftlaunch.views.metrics.exporter` with a socket as its stdin. The first message says what is asked:

    {"run_dir", "port", "bind", "textfile", "ranks", "linger", "kinds": classes of the job's own fault rules,
     "env": variables of the ranks by which their GPUs are known}

What the supervisor is to tell comes back: {"url"} once the port answers, {"trouble": sentence} where something cannot
be done, or can be done again. At the end of its stdin the exporter reads the journal once more: of a job that has ended
it shows the end for `linger` seconds, so that the next scrape sees it. Of a killed supervisor it shows nothing.
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

_EVERY = 1.0  # seconds between two readings
_SHARE = 0.01  # of a core, what reading may take: of many ranks it is done less often then
_SELDOM = 15.0  # seconds between two readings at most, and between two writings of the textfile
_TRIES = 5  # to listen, before it is told that the port is taken: an earlier exporter of the job may just be leaving
_SWITCH = 0.0005  # seconds after which a scrape need not wait for a reading


class Exporter:
    """Of one job."""

    def __init__(self, link: socket.socket, asked: dict[str, Any]) -> None:
        """link: to the supervisor."""
        self._link, self._asked = link, asked
        names = gather_names({**os.environ, **asked["env"]})
        self._sources = Sources(Path(asked["run_dir"]), sorted(kinds(rule_parser.builtin(), asked["kinds"])), names)
        self._supervisor = psutil.Process(os.getppid())
        self._me = psutil.Process()
        self._cost = 0.0  # processor seconds of the newest reading
        self._collector: Collector = CollectorRegistry()  # nothing, until the first reading
        self._pages = WrittenPages()
        self._server: MetricsServer | None = None
        self._refused = 0  # times in a row that the port could not be had
        self._next_file = 0.0
        self._file_error = ""

    def run(self) -> None:
        """Serve until the supervisor hangs up, and then for as long as the end is to be seen."""
        while True:
            self._refresh()
            self._listen()
            if is_readable(self._link, self._patience()):
                break
        self._refresh(last=True)
        leave_at = time.monotonic() + (self._asked["linger"] if self._server is not None else 0.0)
        while self._sources.tally.state and (left := leave_at - time.monotonic()) > 0:
            time.sleep(min(left, _EVERY))
            self._refresh()  # another run of the job may have begun: that one has an exporter of its own
        self._sources.close()

    def _patience(self) -> float:
        return min(max(_EVERY, self._cost / _SHARE), _SELDOM)

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
        port, bind = self._asked["port"], self._asked["bind"]
        if port is None or self._server is not None:
            return
        try:
            self._server = MetricsServer(bind, port, self._pages)
        except OSError as error:
            self._refused += 1
            if self._refused == _TRIES:
                why = f"cannot serve metrics at {bind}:{port}: {(error.strerror or str(error)).lower()}"
                self._tell(trouble=f"{why}; the job goes on, and this is tried again every second")
            return
        self._tell(url=self._server.url)

    # --- the textfile -----------------------------------------------------------------------------------------

    def _write_file(self, last: bool) -> None:
        folder, start = self._asked["textfile"], self._sources.tally.start
        if folder is None or start is None or (time.monotonic() < self._next_file and not last):
            return
        self._next_file = time.monotonic() + _SELDOM
        path = Path(folder, f"ftlaunch_{start['job_id']}.prom")
        error = ""
        try:
            write_to_textfile(str(path), self._collector)
        except OSError as failed:
            error = (failed.strerror or str(failed)).lower()
        if error != self._file_error:
            again = f"; the job goes on, and this is tried again every {_SELDOM:.0f} s"
            self._tell(trouble=f"cannot write {path}: {error}{again}" if error else f"metrics are in {path} again")
        self._file_error = error

    def _tell(self, **message: str) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone: nobody is left who wants to know
            self._link.send(json.dumps(message).encode())


def main() -> None:
    """Be the exporter of the job that the first message names."""
    sys.setswitchinterval(_SWITCH)
    link = socket.socket(fileno=os.dup(0))
    if message := link.recv(1 << 16):
        Exporter(link, json.loads(message)).run()


if __name__ == "__main__":
    main()
