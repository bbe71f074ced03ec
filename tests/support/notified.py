"""Targets of notifications: a web server and a command that writes to a file; and the processes that notify."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import yaml

from tests.support.harness import JOBS, FtJob

BEATS = JOBS / "beats.py"
SECRET = "hunter2-sesame"


class Hook:
    """A webhook that answers with given statuses in turn, and with the last one for ever."""

    def __init__(self, *statuses: int, **headers: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, str | None]] = []
        self.free = Event()  # while cleared, requests are taken and not answered
        self.free.set()
        left = list(statuses)
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.requests.append((self.command, self.path, self.headers["Authorization"]))
                hook.bodies.append(json.loads(body))
                hook.free.wait(60)
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.free.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def start(job: FtJob, *notify: dict[str, Any], steps: int = 40, options: tuple[str, ...] = (), **env: str) -> None:
    """Start beats.py under a spec with these notification targets."""
    spec = job.home / "job.yaml"
    spec.write_text(yaml.safe_dump({"script": str(BEATS), "notify": list(notify), "backoff_first": "0s"}))
    job.start(*options, script=spec, args=(str(steps), "0.005"), env={"no_proxy": "*", **env})


def writer(path: Path) -> list[str]:
    """Return a command that appends its standard input to a file, as one line."""
    code = f"import sys; open({str(path)!r}, 'a').write(sys.stdin.read() + chr(10))"
    return [sys.executable, "-c", code]


def read_notices(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def outcomes(job: FtJob, name: str) -> list[tuple[str, str]]:
    return [(event["kind"], event["target"]) for event in job.events(name)]


def notifiers(job: FtJob) -> list[psutil.Process]:
    """Return the living notifiers of a job, without other helpers."""
    return [child for child in psutil.Process(job.supervisor.pid).children() if _is_notifier(child)]


def _is_notifier(process: psutil.Process) -> bool:
    try:
        return "ftlaunch.notify.notifier" in process.cmdline()
    except psutil.Error:
        return False
