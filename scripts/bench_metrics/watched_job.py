"""Measures the supervisor of a real job whose ranks beat, with nothing, metrics, or everything watching the job."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch_contract.protocol import memory_root

NOTHING = "without metrics"
METRICS = "with metrics"
EVERYTHING = "with everything on"
KINDS = (NOTHING, METRICS, EVERYTHING)
Row = tuple[str, str, str]
# A rank without torch that makes ten steps a second.
BEATING = """
import time
from ftlaunch_contract.protocol import Flag, Phase, Resume
from ftlaunch_hooks.process.bootstrap import own_page
page = own_page()
while page.resume[0] == Resume.UNDECIDED:
    time.sleep(0.001)
page.set_resumed(*page.resume)
page.raise_flag(Flag.ATTACHED)
page.phase, page.step_seconds, step = Phase.TRAIN, 0.1, 0
while True:
    time.sleep(0.1)
    step += 1
    page.beat(step, time.monotonic_ns())
"""


def figure(values: list[float], unit: str, digits: int = 1) -> str:
    """Return median and range as text."""
    return f"{statistics.median(values):.{digits}f} {unit} ({min(values):.{digits}f} to {max(values):.{digits}f})"


class _Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: nobody reads the log."""


@contextmanager
def _hook() -> Iterator[str]:
    """Run a webhook that takes every notice for the time of the context; yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hook) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def _spec(home: Path, ranks: int, on: str, hook: str) -> dict[str, Any]:
    script = home / "beating.py"
    script.write_text(BEATING)
    spec: dict[str, Any] = {"script": str(script), "nproc_per_node": ranks, "warm": False}
    if on == METRICS:
        spec["metrics"] = {"port": 0, "ranks": True, "linger": "0s"}
    if on == EVERYTHING:
        spec["metrics"] = {"port": 0, "ranks": True, "linger": "0s", "textfile": str(home)}
        spec["traces"] = {"endpoint": "http://127.0.0.1:1"}  # nobody listens there
        spec["notify"] = {"url": hook, "on": ["incident", "recovered", "done", "stopped", "slow", "hang_suspected"]}
    return spec


@contextmanager
def _watchers(run_dir: Path, on: str) -> Iterator[list[psutil.Process]]:
    """Run `ftctl top --plain` and `ftctl dashboard` on the job for the time of the context, if everything is on."""
    ctl = [sys.executable, "-m", "ftlaunch.cli.ctl"]
    words = [["top", str(run_dir), "--plain"], ["dashboard", str(run_dir)]] if on == EVERYTHING else []
    started = [subprocess.Popen([*ctl, *each], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for each in words]
    try:
        yield [psutil.Process(program.pid) for program in started]
    finally:
        for program in started:
            program.terminate()
            program.wait()


def _steps(job_id: str) -> int:
    try:
        answer = ask(memory_root(os.getuid()) / job_id / SOCKET, {"do": "status"})
    except (OSError, ValueError):
        return -1
    return min((rank["step"] for rank in answer.get("ranks", ())), default=-1)


def _used(processes: list[psutil.Process]) -> float:
    """Return the processor seconds that some processes have used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measured(home: Path, ranks: int, rounds: int, seconds: float, on: str) -> list[Row]:
    """Measure memory and processor time of the supervisor, and the processor time of all watchers. on: one of KINDS."""
    job_id = f"bench-{os.getpid()}-{KINDS.index(on)}"
    command = [sys.executable, "-m", "ftlaunch", "--run-dir", str(home / job_id), "--job-id", job_id, "job.yaml"]
    memory = []
    used = []
    beside = []
    with ExitStack() as stack:
        hook = stack.enter_context(_hook())
        (home / "job.yaml").write_text(json.dumps(_spec(home, ranks, on, hook)))
        process = stack.enter_context(subprocess.Popen(command, cwd=home, stderr=subprocess.DEVNULL))
        stack.callback(process.terminate)
        while _steps(job_id) < 1:
            time.sleep(0.1)
        watchers = stack.enter_context(_watchers(home / job_id, on))
        time.sleep(8.0)  # until all of them have begun
        me = psutil.Process(process.pid)
        helpers = [child for child in me.children() if any("ftlaunch.views.metrics" in word or "ftlaunch.notify" in word
                   for word in child.cmdline())]  # fmt: skip
        for _ in range(rounds):
            before = _used([me])
            others = _used([*helpers, *watchers])
            began = time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            used.append(100 * (_used([me]) - before) / took)
            beside.append(100 * (_used([*helpers, *watchers]) - others) / took)
            memory.append(me.memory_info().rss / 2**20)
        gone = [each for each in (*helpers, *watchers) if each.status() == psutil.STATUS_ZOMBIE]
        if gone or (on == EVERYTHING and len(helpers) != 3):
            sys.exit(f"bench_metrics: not everything was on: {len(helpers)} helpers of 3, {len(gone)} have ended")
    what = f"the supervisor, {ranks} ranks of ten steps a second, {on}"
    rows = [(f"{what}: memory", figure(memory, "MiB"), "<= 30"), (what, figure(used, "% of a core", 2), "<= 1")]
    if on != NOTHING:
        rows.append((f"processes beside it, {on}", figure(beside, "% of a core", 2), ""))
    return rows
