"""What is left to be tried: series of failing calls, one for each call of each thread and each error."""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from scripts.anomalies.run import Anomaly, Failed

_MOST = 5000
"""calls of one kind in one job"""
_LEAST_STEP = 20
"""from one call that fails to the next one in the same job"""


@dataclass
class Series:
    """The failures of one call of one thread with one error: of the first such call, of the next, until none fails.

    usual: how many such calls an undisturbed job makes. in_one_job: how many of those fail in one job, evenly apart; a
    job that makes more calls than usual may have one failure more.
    tried: how many have failed. wrong: what ended as it must not. is_over: nothing is left to be tried.
    """

    process: str
    thread: int
    call: str
    error: str
    usual: int
    in_one_job: int
    tried: int = 0
    wrong: list[str] = field(default_factory=list)
    is_over: bool = False
    _first: int = 1
    _number: int = 1

    def __str__(self) -> str:
        return f"{self.process}{f', thread {self.thread}' if self.thread else ''}: {self.call} {self.error}"

    @property
    def next(self) -> Anomaly:
        """The call that is to fail next."""
        step = self._step
        return Anomaly(
            self.process, self.call, self.error, self._number, self.thread, step, self._number + step * self.in_one_job
        )

    @property
    def _step(self) -> int:
        return max(math.ceil(self.usual / self.in_one_job), _LEAST_STEP) if self.in_one_job > 1 else 0

    def advance(self, every: int, failed: Failed, *, is_done: bool) -> None:
        """A job has ended in which the next call, and perhaps others after it, were to fail.

        Where the job was given up, or was over before it had made as many calls as usual, a job begins with the call
        after the last one that failed.

        Args:
            every: how far to go on.
            failed: what did fail.
            is_done: the job was not given up.
        """
        self.tried += len(failed.possible)
        number = self._number + failed.calls * self._step
        if not failed.calls and self._number == self._first:
            self.is_over = True
        elif self._step and failed.calls and (failed.calls > self.in_one_job or not is_done or number <= self.usual):
            self._number = number
        else:
            self._first += every
            self._number = self._first
            self.is_over = 0 < self._step < self._first
        if self._number > _MOST:
            self.wrong.append(f"{self}: more than {_MOST} calls")
            self.is_over = True


class Left:
    """The series of one process that nobody has taken yet, and a file that has those that are over."""

    def __init__(self, all_of_them: Iterable[Series], record: Path | None) -> None:
        """record: has a line for each series that is over, and gets more; None: there is no such file."""
        self._record, self._lock = record, threading.Lock()
        over = {line["series"] for line in self._lines()}
        series = list(all_of_them)
        self.over = [one for one in series if str(one) in over]
        """that an earlier run has tried, with what it found"""
        for one in self.over:
            (line,) = (line for line in self._lines() if line["series"] == str(one))
            one.tried, one.wrong = line["tried"], line["wrong"]
        self._waiting = deque(one for one in series if str(one) not in over)

    def _lines(self) -> list[dict[str, object]]:
        if self._record is None or not self._record.exists():
            return []
        return [json.loads(line) for line in self._record.read_text().splitlines()]

    def take(self) -> Series | None:
        """The next series; None: there is none."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def end(self, series: Series) -> None:
        """A series is over."""
        with self._lock:
            self.over.append(series)
            print(f"{series}: {series.tried} tried, {len(series.wrong)} wrong", flush=True)
            if self._record is not None:
                with self._record.open("a") as file:
                    line = {"series": str(series), "tried": series.tried, "wrong": series.wrong}
                    file.write(json.dumps(line) + "\n")
