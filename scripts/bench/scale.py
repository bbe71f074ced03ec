"""Measures how the supervisor's costs grow with the ranks of one machine. The ranks only beat, and cost little."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from machine import cpu_seconds
from trial import JOBS

from ftlaunch.history.journal import read_events
from ftlaunch.memory.directory import memory_dir
from ftlaunch.system.control_socket import SOCKET, ask

_PATIENCE = 120.0  # seconds


class Crowd:
    """A job of many light ranks."""

    def __init__(self, home: Path, ranks: int, deaths: int) -> None:
        """Start the job. deaths: how many ranks will be killed."""
        self.home = home
        self.ranks = ranks
        self._job = f"bench-{os.getpid()}-{ranks}"
        self._socket = memory_dir(self._job) / SOCKET
        home.mkdir()
        budget = ("--max-restarts", str(2 * deaths), "--max-without-progress", "1000", "--backoff-first", "1ms")
        command = [sys.executable, "-m", "ftlaunch", "--nproc-per-node", str(ranks), "--job-id", self._job, *budget]
        with (home / "terminal").open("wb") as out:
            self.began = time.monotonic()
            self._process = subprocess.Popen([*command, JOBS / "light.py"], cwd=home, stdout=out, stderr=out)
        self.supervisor = psutil.Process(self._process.pid)

    def status(self) -> dict[str, Any]:
        """Return the supervisor's status; empty while it does not listen."""
        try:
            return ask(self._socket, {"do": "status"})
        except (OSError, ValueError):
            return {}

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the journal's events of one name."""
        return [event for event in read_events(self.home / "runs" / self._job) if event["event"] == name]

    def wait_for_all(self, attempt: int) -> float:
        """Wait until all ranks of an attempt beat; return the moment. Raises TimeoutError."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            status = self.status()
            beating = [rank for rank in status.get("ranks", ()) if rank["alive"] and rank["step"] > 0]
            if status.get("attempt") == attempt and len(beating) == self.ranks:
                return time.monotonic()
            if self._process.poll() is not None:
                raise RuntimeError(f"ftlaunch ended:\n{(self.home / 'terminal').read_text()}")
            time.sleep(0.01)
        raise TimeoutError(f"{self.ranks} ranks did not beat within {_PATIENCE:.0f} s")

    def kill_one(self) -> tuple[int, float]:
        """Kill a rank chosen at random; return the rank and the moment."""
        rank = random.choice(self.status()["ranks"])
        at = time.monotonic()
        os.kill(rank["pid"], signal.SIGKILL)
        return rank["rank"], at

    def end(self) -> None:
        """Stop the job by SIGTERM, and wait for its end."""
        self._process.terminate()
        self._process.wait()


def measure(home: Path, ranks: int, rounds: int, watched: float) -> dict[str, list[float]]:
    """Run one job; return the measurements of each figure, in seconds, MiB, or shares of a core.

    Args:
        home: a directory to make.
        ranks: the number of ranks.
        rounds: how many ranks are killed, one after another.
        watched: seconds in which the supervisor's processor time is taken in each round.
    """
    crowd = Crowd(home, ranks, rounds)
    found: dict[str, list[float]] = {"start": [crowd.wait_for_all(0) - crowd.began]}
    names = ("death to seen", "seen to all gone", "gone to all started", "death to all beating", "CPU", "answer")
    found |= {name: [] for name in names}
    for number in range(rounds):
        began = time.monotonic()
        crowd.status()
        found["answer"].append(time.monotonic() - began)
        before = cpu_seconds(crowd.supervisor.pid)
        began = time.monotonic()
        time.sleep(watched)
        found["CPU"].append((cpu_seconds(crowd.supervisor.pid) - before) / (time.monotonic() - began))
        rank, died = crowd.kill_one()
        beating = crowd.wait_for_all(number + 1)
        exits = [event for event in crowd.events("rank_exited") if event["mono"] >= died]
        dying = [event for event in crowd.events("rank_dying") if event["mono"] >= died]
        seen = next(event["mono"] for event in [*dying, *exits] if event["rank"] == rank)
        started = crowd.events("attempt_started")[-1]["mono"]
        gone = max(event["mono"] for event in exits)
        found["death to seen"].append(seen - died)
        found["seen to all gone"].append(gone - seen)
        found["gone to all started"].append(started - gone)
        found["death to all beating"].append(beating - died)
    found["resident"] = [crowd.supervisor.memory_info().rss / 2**20]
    crowd.end()
    return found
