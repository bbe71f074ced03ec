"""Measures what metrics cost: a scrape at 1,024 ranks, the exporter, and the supervisor with and without metrics.

    python scripts/bench_metrics        (make bench-metrics)

For the scrapes the ranks are pages in memory that one process beats, and a journal, which is all that the exporter
reads of a job. The supervisor is real, with ranks that make ten steps a second: unwatched, with metrics, and with
everything that can watch a job (see watched_job.py). Prints a table: median, and the range over the rounds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import timeit
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import psutil
import watched_job
from watched_job import Row, figure

from ftlaunch.history.journal import Journal
from ftlaunch.memory.pages import Pages
from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.protocol import Phase

HEADERS = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}  # as Prometheus sends


@contextmanager
def beating(home: Path, ranks: int) -> Iterator[Path]:
    """Yield the run dir of a job whose `ranks` ranks make ten steps a second."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ftlaunch-bench-") as memory:
        pages = []
        for rank in range(ranks):
            create_page(page_path(Path(memory), rank))
            pages.append(Page(page_path(Path(memory), rank)))
            pages[-1].begin(0, os.getpid(), 0)
            pages[-1].phase = Phase.TRAIN
        journal = Journal(home)
        about = {"job_id": "bench", "host": "here", "run_dir": str(home), "memory_dir": memory, "ranks": ranks}
        journal.write("job_started", **about, max_restarts=3, max_hang_restarts=3)
        journal.write("attempt_started", pids=None, port=0)
        journal.write("resumed", step=0, source=None, steps_lost=0, seconds=None)
        over = Event()
        step = 0
        thread = Thread(target=lambda: _beat(pages, over, step))
        thread.start()
        try:
            yield home
        finally:
            over.set()
            thread.join()
            journal.close()


def _beat(pages: list[Page], over: Event, step: int) -> None:
    while not over.wait(0.1):
        step += 1
        for page in pages:
            page.end_step(step, 100_000_000, time.monotonic_ns())


@contextmanager
def exporter(run_dir: Path, ranks: bool) -> Iterator[tuple[psutil.Process, str]]:
    """Run an exporter for the time of the context; yield its process and its URL."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked = {"run_dir": str(run_dir), "port": 0, "bind": "127.0.0.1", "textfile": None, "ranks": ranks, "linger": 0,
             "kinds": [], "env": {}}  # fmt: skip
    with subprocess.Popen([sys.executable, "-m", "ftlaunch.views.metrics.exporter"], stdin=theirs.fileno()) as process:
        theirs.close()
        ours.send(json.dumps(asked).encode())
        yield psutil.Process(process.pid), json.loads(ours.recv(1 << 16))["url"]
        ours.close()


def scrapes(home: Path, ranks: int, count: int, *, by_rank: bool) -> list[Row]:
    """Scrape an exporter as Prometheus does (OpenMetrics, gzip), every 50 ms.

    Returns:
        Rows of a table: times and size of the scrapes, memory and processor time of the exporter.
    """
    run_dir = home / f"run_{ranks}_{by_rank}"
    run_dir.mkdir()
    times: list[float] = []
    with beating(run_dir, ranks) as job, exporter(job, by_rank) as (process, url):
        time.sleep(3)
        first = [_scrape(url, HEADERS)[0], _scrape(url, {})[0]]
        before = process.cpu_times()
        began = time.monotonic()
        for _ in range(count):
            took, page = _scrape(url, HEADERS)
            times.append(took)
            time.sleep(0.05)
        after = process.cpu_times()
        ended = time.monotonic()
        memory = process.memory_info().rss / 2**20
    used = 100 * (after.user + after.system - before.user - before.system) / (ended - began)
    text = gzip.decompress(page)
    samples = sum(not line.startswith(b"#") for line in text.splitlines())
    reading = next(float(line.split()[1]) for line in text.decode().splitlines()
                   if line.startswith("ftlaunch_exporter_refresh_seconds{"))  # fmt: skip
    what = f"{ranks:,} ranks, {'with' if by_rank else 'without'} labels by rank"
    within = sorted(times)[int(0.99 * len(times))]
    return [
        (f"a scrape, {what}", figure(times, "ms"), f"<= 5; 99 of 100 within {within:.1f} ms"),
        (
            f"the first scrape, {what}",
            f"{first[0]:.1f} ms",
            f"<= 5; the first of text that is not packed {first[1]:.1f} ms",
        ),
        (
            f"its size, {what}",
            f"{samples:,} samples, {len(text) / 1024:.0f} KiB, {len(page) / 1024:.0f} KiB packed",
            "",
        ),
        (f"reading all once, {what}", f"{reading * 1000:.0f} ms of a core", "the newest of its readings"),
        (f"the exporter, {what}", f"{memory:.1f} MiB, {used:.1f} % of a core", "20 scrapes a second meanwhile"),
    ]


def _scrape(url: str, headers: dict[str, str]) -> tuple[float, bytes]:
    """Return the milliseconds of a scrape, and the answer."""
    at = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        page = answer.read()
    return (time.monotonic() - at) * 1000, page


def asked(ranks: int, count: int) -> list[Row]:
    """Measure what the supervisor's answer to the exporter costs at many ranks: finding the newest step in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ftlaunch-bench-") as memory:
        pages = Pages(Path(memory), ranks)
        for page in pages.pages:
            page.set_slot(0, 5)
        times = [timeit.timeit(pages.newest_common, number=1) * 1000 for _ in range(count)]
        pages.close()
    return [(f"the supervisor, {ranks:,} ranks: the newest step in memory, once a reading", figure(times, "ms"), "")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scrapes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a round")
    parser.add_argument("--ranks", type=int, default=8, help="of the supervisor")
    given = parser.parse_args()
    rows: list[Row] = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home:
        for by_rank in (True, False):
            rows += scrapes(Path(home), 1024, given.scrapes, by_rank=by_rank)
        rows += asked(1024, 100)
        for on in watched_job.KINDS:
            rows += watched_job.measured(Path(home), given.ranks, given.rounds, given.seconds, on)
    print("| what | measured | wanted |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    loads = f"load before {load:.1f}, after {os.getloadavg()[0]:.1f}"
    print(f"\n{os.cpu_count()} processors, {time.strftime('%Y-%m-%d')}; {loads}")


if __name__ == "__main__":
    main()
