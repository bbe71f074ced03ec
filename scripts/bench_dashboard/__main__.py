"""Measures `ftctl dashboard`: how late its news are, and what 100 browsers cost the server. `make bench-dashboard`.

The browsers are 100 clients of server-sent events in one process beside the server; this script writes the journal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.dashboards import Dashboard, memory_of, processor_time

HEADS = (
    "lines", "browsers", "first message", "delay, median", "longest", "processor time each", "while they come", "quiet",
    "memory",
)  # fmt: skip


class Journal:
    """The journal of a job that has trained for some minutes."""

    def __init__(self, run_dir: Path, minutes: int) -> None:
        run_dir.mkdir(parents=True)
        self._file = (run_dir / "events.jsonl").open("a", buffering=1)
        self._begun = time.time() - 60 * minutes
        self.step = 0
        self.lines = 0
        self._write(0.0, "job_started", job_id="bench", ranks=8, pid=1, start_time=0, run_dir=str(run_dir))
        self._write(1.0, "attempt_started", pids=[], port=1)
        self._write(2.0, "resumed", step=0)
        pairs = [[rank, 2.0 + rank / 8] for rank in range(3)]
        self._file.reconfigure(line_buffering=False)
        for minute in range(1, minutes):
            self._write(60.0 * minute, "progress", step=600 * minute, loss=pairs, step_seconds=pairs, of=8)
            if minute % 1000 == 0:
                self.append_incident(60.0 * minute)
        self._file.flush()
        self._file.reconfigure(line_buffering=True)

    def _write(self, mono: float, event: str, **fields: object) -> None:
        at = self._begun + mono
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
        self.lines += 1
        self._file.write(json.dumps({"t": stamp, "mono": mono, "attempt": 0, "event": event, **fields}) + "\n")

    def append_incident(self, now: float | None = None) -> str:
        """Write one more incident, now or at a second of the job; return its sentence."""
        self.step += 1
        sentence = f"incident {self.step} of the benchmark"
        now = time.time() - self._begun if now is None else now
        self._write(now, "incident", rank=0, kind="killed", sentence=sentence, verdict="restart", step=self.step)
        return sentence


class Client:
    """A browser, which notes when each sentence came."""

    def __init__(self) -> None:
        self.received_at: dict[str, float] = {}
        self.awaited = "?"
        self.ready = asyncio.Event()

    async def read(self, client: httpx.AsyncClient, path: str) -> None:
        async with client.stream("GET", path) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                self.ready.set()
                # Parsing JSON in a hundred clients would measure the clients instead of the server.
                if self.awaited in line:
                    self.received_at.setdefault(self.awaited, time.monotonic())


async def measured(dashboard: Dashboard, journal: Journal, count: int, rounds: int) -> None:
    """Print how long `rounds` incidents took to reach `count` browsers, and what the server used meanwhile."""
    clients = [Client() for _ in range(count)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=dashboard.at, timeout=300, trust_env=False, limits=limits) as session:
        await session.get("", params={"token": dashboard.token})
        tasks = [asyncio.create_task(client.read(session, "run/job/news")) for client in clients]
        opened = time.monotonic()
        await asyncio.gather(*(client.ready.wait() for client in clients))
        first = time.monotonic() - opened
        delays = []
        began = time.monotonic()
        used = processor_time(dashboard.process.pid)
        for _ in range(rounds):
            sentence = f"incident {journal.step + 1} of the benchmark"
            written = time.monotonic()
            for client in clients:
                client.awaited = sentence
            journal.append_incident()
            while not all(sentence in client.received_at for client in clients):
                await asyncio.sleep(0.005)
            delays += [client.received_at[sentence] - written for client in clients]
            await asyncio.sleep(0.5)
        wall = time.monotonic() - began
        spent = processor_time(dashboard.process.pid) - used
        idle_began = time.monotonic()
        idle_used = processor_time(dashboard.process.pid)
        await asyncio.sleep(10.0)
        idle = (processor_time(dashboard.process.pid) - idle_used) / (time.monotonic() - idle_began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    size = memory_of(dashboard.process.pid) / 2**20
    print(
        f"| {journal.lines:,} | {count} | {first:.1f} s"
        f" | {1000 * statistics.median(delays):.0f} ms | {1000 * max(delays):.0f} ms |"
        f" {1000 * spent / rounds:.0f} ms | {spent / wall:.1%} | {idle:.1%} | {size:.0f} MiB |",
        flush=True,
    )


async def listed(dashboard: Dashboard) -> None:
    """Print what the page of all jobs costs in addition."""
    async with httpx.AsyncClient(base_url=dashboard.at, timeout=300, trust_env=False) as session:
        await session.get("", params={"token": dashboard.token})
        opened = time.monotonic()
        async with session.stream("GET", "news") as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and '"state": "reading"' not in line:
                    break
    size = memory_of(dashboard.process.pid) / 2**20
    print(f"all jobs: the row was there after {time.monotonic() - opened:.1f} s; then {size:.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=int, default=600, help="that the job has trained: a line of its journal each")
    parser.add_argument("--long", type=int, default=1_000_000, help="the same of a second journal")
    args = parser.parse_args()
    print(f"{args.rounds} incidents, load {os.getloadavg()[0]:.1f}")
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}")
    for minutes in (args.minutes, args.long):
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(Path(folder) / "runs" / "job", minutes)
            dashboard = Dashboard(Path(folder), "--dir", "runs")
            try:
                for count in (1, 100):
                    asyncio.run(measured(dashboard, journal, count, args.rounds))
                asyncio.run(listed(dashboard))
            finally:
                dashboard.close()


if __name__ == "__main__":
    main()
