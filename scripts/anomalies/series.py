"""What is left to be tried: one series of failing calls for each call, thread and error."""

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
"""the largest number of calls of one kind in one job"""
_LEAST_STEP = 20
"""the least number of calls between two that fail in one job"""


@dataclass
class Series:
    """The failures of one call of one thread with one error: first of the first such call, then of the next ones.

    Attributes:
        process: a key of SCENES.
        thread: the number of the thread.
        call: the name of the system call.
        error: the name of the error.
        usual: how many such calls an undisturbed job makes.
        in_one_job: how many of these fail in one job, evenly apart. A job that makes more calls may have one more
            failure.
        tried: how many calls have failed so far.
        wrong: a line for each job that ended wrongly.
        is_over: whether nothing is left to be tried.
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
        """The call that fails next, with those after it in the same job."""
        step = self._step
        return Anomaly(
            process=self.process,
            call=self.call,
            error=self.error,
            number=self._number,
            thread=self.thread,
            step=step,
            last=self._number + step * self.in_one_job,
        )

    @property
    def _step(self) -> int:
        return max(math.ceil(self.usual / self.in_one_job), _LEAST_STEP) if self.in_one_job > 1 else 0

    def advance(self, every: int, failed: Failed, *, is_done: bool) -> None:
        """Go on after a job in which the calls of `next` were to fail.

        If the job was given up, or ended before it had made as many calls as usual, the next job begins with the call
        after the last one that failed.

        Args:
            every: the distance to the next first call.
            failed: what has failed.
            is_done: whether the job has finished, instead of being given up.
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
    """The series of one process that no worker has taken yet, and a file that records finished series."""

    def __init__(self, all_of_them: Iterable[Series], record: Path | None) -> None:
        """Leave out series that are recorded as finished.

        Args:
            all_of_them: all series of the process.
            record: the file with a line for each finished series, to which more lines are added; or None.
        """
        self._record = record
        self._lock = threading.Lock()
        over = {line["series"] for line in self._lines()}
        series = list(all_of_them)
        self.over = [each for each in series if str(each) in over]
        """the finished series; those of an earlier run have its results"""
        for finished in self.over:
            (line,) = (line for line in self._lines() if line["series"] == str(finished))
            finished.tried = line["tried"]
            finished.wrong = line["wrong"]
        self._waiting = deque(each for each in series if str(each) not in over)

    def _lines(self) -> list[dict[str, object]]:
        if self._record is None or not self._record.exists():
            return []
        return [json.loads(line) for line in self._record.read_text().splitlines()]

    def pop_series(self) -> Series | None:
        """Return the next series, or None if none is left. Workers in several threads may call this."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def end(self, series: Series) -> None:
        """Record a finished series, and print its numbers."""
        with self._lock:
            self.over.append(series)
            print(f"{series}: {series.tried} tried, {len(series.wrong)} wrong", flush=True)
            if self._record is not None:
                with self._record.open("a") as file:
                    line = {"series": str(series), "tried": series.tried, "wrong": series.wrong}
                    file.write(json.dumps(line) + "\n")
