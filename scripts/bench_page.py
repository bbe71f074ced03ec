"""What the page of a job costs: a month with a million events and ten thousand incidents, and 16,384 ranks.

    python scripts/bench_page.py [--runs 3]

What it adds to the end of a job that does nothing, and what a note of losses and step times costs the supervisor. For
each journal: seconds, peak memory and bytes of the page, and where playwright and Chromium are, the seconds until a
browser has opened it. Medians.
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
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftlaunch.health.progress import Milestone
from ftlaunch.reporting.events.ranks import Progressed

MONTH, WEEK = 30 * 86400.0, 7 * 86400.0
CHROMIUM = "/usr/bin/chromium"
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
Event = dict[str, Any]


def life(seconds: float, ranks: int, incidents: int) -> Iterator[tuple[float, Event]]:
    """The events of a job, each with its time: failures at even distances, a note each minute, ten minutes a save."""
    yield 0.0, {"event": "job_started", "job_id": "bench", "pid": 1, "start_time": 0, "host": "a", "ranks": ranks,
                "command": ["train.py"], "killed_at": None}  # fmt: skip
    yield 1.0, {"event": "attempt_started", "pids": list(range(ranks)), "port": 1}
    yield 20.0, {"event": "resumed", "step": 0, "source": None, "steps_lost": None, "seconds": None}
    step, each, minute = 0, seconds / (incidents + 1), 0
    for number in range(incidents):
        at = (number + 1) * each
        while 60.0 * (minute + 1) < at - 30:
            minute += 1
            step += 30
            pairs = [[rank, 2.0 + 8.0 / (1 + minute / 1000) + rank / 100] for rank in range(min(ranks, 3))]
            told = {"loss": pairs, "step_seconds": [[rank, 2.0 + rank / 50] for rank, _ in pairs]}
            yield 60.0 * minute, {"event": "progress", "step": step, **told, "of": ranks}
            if minute % 10 == 0:
                saved = {"why": "interval", "bytes": 1 << 40, "seconds": 42.0, "health": "normal", "path": "/c"}
                yield 60.0 * minute, {"event": "checkpoint_committed", "step": step, **saved}
        yield at, {"event": "incident", "cause": f"rank {number % ranks} was killed by SIGKILL after step {step}",
                   "kind": "killed", "rank": number % ranks, "step": step, "verdict": "restart", "delay": 0.0,
                   "sentence": f"rank {number % ranks} was killed by SIGKILL after step {step}; restarting now",
                   "signature": "killed", "action": "restart", "since_progress": 1.0, "restarts_left": 3,
                   "trace": "Traceback (most recent call last):\n  <b>x</b>", "autopsy": None}  # fmt: skip
        for rank in range(ranks):
            yield at + 0.5, {"event": "rank_exited", "rank": rank, "pid": rank, "code": -9, "signal": "SIGKILL",
                             "step": step}  # fmt: skip
        yield at + 1, {"event": "attempt_started", "pids": list(range(ranks)), "port": 1}
        yield at + 5, {"event": "resumed", "step": step, "source": "memory", "steps_lost": 2, "seconds": 5.0}
        yield at + 8, {"event": "recovered", "step": step + 1, "seconds": 8.0}
    yield seconds, {"event": "job_finished", "code": 0, "restarts": incidents}


def write(run_dir: Path, ranks: int, incidents: int, seconds: float, fill: int) -> int:
    """A run dir with such a journal, of `fill` events at least; returns how many."""
    run_dir.mkdir()
    count, attempt = 0, 0
    with (run_dir / "events.jsonl").open("w") as file:
        for at, event in life(seconds, ranks, incidents):
            attempt += event["event"] == "attempt_started" and at > 1
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(1_790_000_000 + at))
            count += 1
            if event["event"] == "job_finished":
                for _ in range(fill - count):
                    deleted = {"event": "checkpoint_deleted", "step": 1, "keep": 5}
                    file.write(json.dumps({"t": stamp, "mono": at, "attempt": attempt, **deleted}) + "\n")
                    count += 1
            file.write(json.dumps({"t": stamp, "mono": at, "attempt": attempt, **event}) + "\n")
    return count


def made(run_dir: Path) -> tuple[float, float]:
    """Seconds and peak MiB of the process that writes the page."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "ftlaunch.report_page", str(run_dir)])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the page was not made: status {status}")
    return time.monotonic() - began, usage.ru_maxrss / 1024


def opened(page: Path) -> float | None:
    """Seconds until a browser has loaded and drawn the page; None without one."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if not Path(CHROMIUM).exists():
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        tab = browser.new_page()
        began = time.monotonic()
        tab.goto(page.as_uri())
        tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seconds = time.monotonic() - began
        browser.close()
    return seconds


def ended(home: Path, option: str) -> float:
    """Seconds of a job whose rank ends at once."""
    began = time.monotonic()
    words = ["--no-warm", "--run-dir", str(home / f"run{option}{began}"), option, "--no-python", "true"]
    subprocess.run([sys.executable, "-m", "ftlaunch", *words], check=True, capture_output=True)
    return time.monotonic() - began


def note(ranks: int) -> float:
    """Seconds of a processor that the fields of one `progress` take."""
    pairs = [(rank, 1.0 / (1 + rank * 7919 % ranks)) for rank in range(ranks)]
    event = Progressed(Milestone(1), pairs, pairs)
    return min(timeit.repeat(event.fields, number=1, repeat=20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="bench-page-") as place:
        times = [(ended(Path(place), "--report-page"), ended(Path(place), "--no-report-page")) for _ in range(3 * runs)]
        with_page, without = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"a job that does nothing: {with_page:.2f} s with a page, {without:.2f} s without")
    print("a note: " + ", ".join(f"{1000 * note(ranks):.2f} ms of {ranks:,} ranks" for ranks in (8, 1024, 16_384)))
    print("| journal | events | MiB | seconds | peak MiB | page, KiB | opened, seconds |")
    print("| --- " * 7 + "|")
    with tempfile.TemporaryDirectory(prefix="bench-page-") as place:
        for name, ranks, incidents, seconds, fill in (
            ("a quiet hour, 8 ranks", 8, 2, 3600.0, 0),
            ("a month, 64 ranks, 10,000 incidents", 64, 10_000, MONTH, 1_000_000),
            ("a week, 16,384 ranks, 58 incidents", 16_384, 58, WEEK, 0),
        ):
            run_dir = Path(place, str(ranks))
            events = write(run_dir, ranks, incidents, seconds, fill)
            figures = [made(run_dir) for _ in range(runs)]
            page = run_dir / "report.html"
            times = [found for _ in range(runs) if (found := opened(page)) is not None]
            cells = [
                name, f"{events:,}", f"{(run_dir / 'events.jsonl').stat().st_size / 2**20:.0f}",
                f"{statistics.median(took for took, _ in figures):.2f}", f"{max(peak for _, peak in figures):.0f}",
                f"{page.stat().st_size / 1024:.0f}", f"{statistics.median(times):.2f}" if times else "not measured",
            ]  # fmt: skip
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
