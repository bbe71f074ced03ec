"""Measures what `ftctl report DIR` costs: time and memory for many journals, in a process of its own.

    python scripts/bench_digest.py        (make bench-digest)

The journals are those of jobs of 8 ranks with a failure every thousand steps. Prints a table: median, and the range
over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FAILURE_EVERY = 1000  # lines


def events(lines: int, job: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal of `lines` lines."""
    yield {"event": "job_started", "job_id": f"bench-{job}", "ranks": 8, "pid": 1, "memory_dir": "/dev/shm/x"}
    yield {"event": "attempt_started", "pids": None, "port": 1, "hosts": None, "seconds": 1.0}
    yield {"event": "resumed", "step": 0, "source": None, "steps_lost": None, "seconds": None}
    for number in range(3, lines - 1):
        match number % _FAILURE_EVERY:
            case 1:
                yield {"event": "incident", "kind": "killed", "rank": 1, "step": number, "since_progress": 0.5,
                       "verdict": "restart", "sentence": "rank 1 was killed", "host": f"node-{job % 7}"}  # fmt: skip
            case 2:
                yield {"event": "attempt_started", "pids": None, "port": 1, "hosts": None, "seconds": 1.0}
            case 3:
                yield {"event": "resumed", "step": number, "source": "memory", "steps_lost": 1, "seconds": 2.0}
            case 4:
                yield {"event": "recovered", "step": number, "seconds": 3.0}
            case _:
                yield {"event": "progress", "step": number, "step_times": [0.1] * 8, "losses": [1.0] * 8}
    yield {"event": "job_finished", "code": 0, "restarts": lines // _FAILURE_EVERY}


def write_runs(runs: Path, jobs: int, lines: int) -> int:
    """Write the run dirs; return the bytes of all journals."""
    size = 0
    for job in range(jobs):
        path = runs / f"run_{job}" / "events.jsonl"
        path.parent.mkdir()
        with path.open("w") as file:
            for number, event in enumerate(events(lines, job)):
                at = 1_900_000_000 + 10 * number
                stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at))
                file.write(json.dumps({"t": stamp, "mono": 10.0 * number, "attempt": 0, **event}) + "\n")
        size += path.stat().st_size
    return size


def measured(runs: Path) -> tuple[float, float]:
    """Return the seconds and the MiB of one report."""
    began = time.monotonic()
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "report", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"bench_digest: `ftctl report` ended with exit code {process.returncode}")
    return time.monotonic() - began, used.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=10_000, help="of each journal")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        size = write_runs(Path(home), given.jobs, given.lines)
        rounds = [measured(Path(home)) for _ in range(given.rounds)]
    what = f"{given.jobs} journals of {given.lines:,} lines each, {size / 1e6:.0f} MB"
    seconds, memory = zip(*rounds, strict=True)
    print("| what | time | memory |\n| --- | --- | --- |")
    print(f"| {what} | {_figure(seconds, 's')} | {_figure(memory, 'MiB')} |")
    print(f"\n{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")


def _figure(values: tuple[float, ...], unit: str) -> str:
    return f"{statistics.median(values):.1f} {unit} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()
