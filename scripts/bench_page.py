"""Measures what a job's page costs: for months with many notes or incidents, for 16,384 ranks, and near its size limit.

    python scripts/bench_page.py [--runs 3]

Also measured: what the page adds to the end of a job that does nothing, and what a note of losses and step times costs
the supervisor. For each journal the table shows processor seconds, peak memory, the size of the page, and, with
playwright and Chromium, the seconds until a browser has opened the page. All figures are medians.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.health.progress import Milestone
from ftlaunch.reporting.events.ranks import Progressed

MONTH = 30 * 86400.0  # seconds
WEEK = 7 * 86400.0  # seconds
CHROMIUM = "/usr/bin/chromium"
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
Event = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A job whose page is measured."""

    name: str
    ranks: int
    incidents: int
    seconds: float
    each: float = 60.0
    """seconds between two notes of losses and step times; real jobs write a note every 10 to 60 seconds"""
    wide: bool = False
    """whether texts and logs are as long as a page can take them"""


CASES = (
    Case(name="a quiet hour, 8 ranks", ranks=8, incidents=2, seconds=3600.0),
    Case(
        name="a month, 8 ranks, a note each 10 s, 300 incidents",
        ranks=8,
        incidents=300,
        seconds=MONTH,
        each=10.0,
    ),
    Case(name="a month, 64 ranks, 10,000 incidents", ranks=64, incidents=10_000, seconds=MONTH),
    Case(name="a week, 16,384 ranks, 58 incidents", ranks=16_384, incidents=58, seconds=WEEK),
    Case(
        name="the worst: a million notes of 8 ranks",
        ranks=8,
        incidents=10,
        seconds=MONTH,
        each=MONTH / 1e6,
    ),
    Case(
        name="a page near its limit: 2,000 incidents, long texts",
        ranks=8,
        incidents=2000,
        seconds=MONTH,
        wide=True,
    ),
)


def life(case: Case) -> Iterator[tuple[float, Event]]:
    """Yield the events of a job with their times: evenly distributed failures, notes, and a save every ten minutes."""
    ranks = case.ranks
    shown = ranks if ranks <= 8 else 3
    yield 0.0, {"event": "job_started", "job_id": "bench", "pid": 1, "start_time": 0, "host": "a", "ranks": ranks,
                "command": ["train.py"], "killed_at": None}  # fmt: skip
    yield 1.0, {"event": "attempt_started", "pids": list(range(ranks)), "port": 1}
    yield 20.0, {"event": "resumed", "step": 0, "source": None, "steps_lost": None, "seconds": None}
    step = 0
    between = case.seconds / (case.incidents + 1)
    note = 0
    saved = 0.0
    for number in range(case.incidents + 1):
        at = (number + 1) * between
        while case.each * (note + 1) < at - 30:
            note += 1
            now = case.each * note
            step = int(case.each * note / 2)
            pairs = [[rank, 2.0 + 8.0 / (1 + now / 60_000) + rank / 100] for rank in range(shown)]
            times = [[rank, 2.0 + rank / 50] for rank, _ in pairs]
            of = ranks if ranks > 8 else None
            yield now, {"event": "progress", "step": step, "loss": pairs, "step_seconds": times, "of": of}
            if now - saved >= 600:
                saved = now
                health = "normal" if number % 10 else "abnormal"
                yield now, {"event": "checkpoint_committed", "step": step, "why": "interval", "bytes": 1 << 40,
                            "seconds": 42.0, "health": health, "path": "/c"}  # fmt: skip
                yield now, {"event": "checkpoint_deleted", "step": max(step - 3000, 0), "keep": 5}
        if number < case.incidents:
            yield from failure(case, number, at, step)
    yield case.seconds, {"event": "job_finished", "code": 0, "restarts": case.incidents}


def failure(case: Case, number: int, at: float, step: int) -> Iterator[tuple[float, Event]]:
    """Yield the events of a rank's death, and of the restart after it."""
    rank = number % case.ranks
    words = 300 if case.wide else 0
    sentence = f"rank {rank} was killed by SIGKILL after step {step}" + " <more> of it" * words
    yield at, {"event": "incident", "cause": sentence, "kind": "killed", "rank": rank, "step": step,
               "verdict": "restart", "delay": 0.0, "sentence": f"{sentence}; restarting now", "signature": "killed",
               "action": "restart", "since_progress": 1.0, "restarts_left": 3,
               "trace": "Traceback (most recent call last):\n" + "  <b>some <i>line</i> of it</b>\n" * (1 + words),
               "autopsy": None}  # fmt: skip
    for ended in range(case.ranks):
        yield at + 0.5, {"event": "rank_exited", "rank": ended, "pid": ended, "code": -9, "signal": "SIGKILL",
                         "step": step}  # fmt: skip
    yield at + 1, {"event": "attempt_started", "pids": list(range(case.ranks)), "port": 1}
    yield at + 5, {"event": "resumed", "step": step, "source": "memory", "steps_lost": 2, "seconds": 5.0}
    yield at + 8, {"event": "recovered", "step": step + 1, "seconds": 8.0}


def write(run_dir: Path, case: Case) -> int:
    """Write a run dir with the journal of a job; return the number of events."""
    run_dir.mkdir()
    count = 0
    attempt = 0
    with (run_dir / "events.jsonl").open("w") as file:
        for at, event in life(case):
            attempt += event["event"] == "attempt_started" and at > 1
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(1_790_000_000 + at))
            file.write(json.dumps({"t": stamp, "mono": at, "attempt": attempt, **event}) + "\n")
            count += 1
    for attempt in range(case.incidents if case.wide else 0):
        log = run_dir / f"logs/attempt_{attempt}/rank_{attempt % case.ranks}.log"
        log.parent.mkdir(parents=True)
        log.write_text("a line of a log, with <signs> that <grow> when <they> are encoded " * 2 + "\n")
        log.write_text(log.read_text() * 100)
    return count


def made(run_dir: Path) -> tuple[float, float]:
    """Write the page; return the processor seconds and the peak MiB of the process that writes it."""
    process = subprocess.Popen([sys.executable, "-m", "ftlaunch.views.report_page", str(run_dir)])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the page was not made: status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def opened(page: Path) -> float | None:
    """Return the seconds until a browser has loaded and drawn the page; None without a browser."""
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
    """Return the seconds of a job whose rank ends at once. option: --report-page or --no-report-page."""
    began = time.monotonic()
    words = ["--no-warm", "--run-dir", str(home / f"run{option}{began}"), option, "--no-python", "true"]
    subprocess.run([sys.executable, "-m", "ftlaunch", *words], check=True, capture_output=True)
    return time.monotonic() - began


def note(ranks: int) -> float:
    """Return the processor seconds that the fields of one `progress` event take."""
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
    print("| journal | events | MiB | processor, seconds | peak MiB | page, KiB | opened, seconds |")
    print("| --- " * 7 + "|")
    with tempfile.TemporaryDirectory(prefix="bench-page-") as place:
        for number, case in enumerate(CASES):
            run_dir = Path(place, str(number))
            events = write(run_dir, case)
            figures = [made(run_dir) for _ in range(runs)]
            page = run_dir / "report.html"
            times = [found for _ in range(runs) if (found := opened(page)) is not None]
            cells = [
                case.name, f"{events:,}", f"{(run_dir / 'events.jsonl').stat().st_size / 2**20:.0f}",
                f"{statistics.median(took for took, _ in figures):.2f}", f"{max(peak for _, peak in figures):.0f}",
                f"{page.stat().st_size / 1024:.0f}", f"{statistics.median(times):.2f}" if times else "not measured",
            ]  # fmt: skip
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
