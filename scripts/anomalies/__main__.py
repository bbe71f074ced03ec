"""Makes each system call of a process of ours fail in turn, and sees that the job ends well, or with a sentence.

    python -m scripts.anomalies --process supervisor --calls openat getdents64 --every 1

Of each call and each error, the first call fails in one job, the second one in the next, and so on, until a job passes
in which the call was not made so often: SQLite's own tests do that with each of its calls. Calls that an undisturbed
job does not make are left out. Exits with 1 where a job ends with exit code 70, hangs, ends without a word or with
another result, or leaves a process or memory behind. Takes hours; `--every 7` tries every seventh call.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts.anomalies.calls import ERRORS
from scripts.anomalies.jobs import SCENES
from scripts.anomalies.run import Anomaly, CannotBegin, Outcome, count_calls, run

_MOST = 5000
"""calls of one kind in one job"""
_TRIES = 3
"""times that a job may not begin"""


@dataclass(frozen=True)
class Series:
    """The failures of one call of one thread with one error."""

    process: str
    thread: int
    call: str
    error: str

    def __str__(self) -> str:
        return f"{self.process}{f', thread {self.thread}' if self.thread else ''}: {self.call} {self.error}"


def main() -> int:
    """Run, and print the numbers."""
    options = _parse()
    if shutil.which("strace") is None:
        print("cannot make calls fail: strace is not installed", file=sys.stderr)
        return 2
    wrong = [line for process in options.process or SCENES for line in _fail_calls_of(process, options)]
    for line in wrong:
        print(f"  {line}")
    return 1 if wrong else 0


def _fail_calls_of(process: str, options: argparse.Namespace) -> list[str]:
    """Fail the calls of one process; returns what ended wrongly."""
    tried: Counter[str] = Counter()
    wrong: list[str] = []
    began = time.monotonic()
    with ThreadPoolExecutor(options.workers) as pool:
        series = _series(process, options.calls or tuple(ERRORS), one_error=options.one_error)
        for one, (lines, count) in zip(series, pool.map(lambda one: _fail(one, options.every), series), strict=True):
            tried[one.call] += count
            wrong += lines
    seconds = time.monotonic() - began
    print(
        f"{process}: {sum(tried.values())} failing calls in {seconds:.0f} s: {dict(tried)}; {len(wrong)} ended wrongly",
        flush=True,
    )
    return wrong


def _begun(anomaly: Anomaly, home: Path) -> Outcome:
    """Run a job with a failing call; one that did not begin, on a machine that stood still, is tried again.

    Raises CannotBegin.
    """
    for number in range(1, _TRIES):
        with contextlib.suppress(CannotBegin):
            place = home / str(number)
            place.mkdir()
            return run(anomaly, place)
    return run(anomaly, home)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="anomalies")
    parser.add_argument("--process", nargs="*", choices=tuple(SCENES), help="all if not given")
    parser.add_argument("--calls", nargs="*", choices=tuple(ERRORS), help="all if not given")
    parser.add_argument("--every", type=int, default=1, help="of the calls of one kind, each n-th is made to fail")
    parser.add_argument("--one-error", action="store_true", help="the first error of each call alone")
    parser.add_argument("--workers", type=int, default=2, help="jobs at once")
    return parser.parse_args()


def _series(process: str, calls: tuple[str, ...], *, one_error: bool) -> list[Series]:
    """What there is to be tried: each call that an undisturbed job makes, by thread."""
    home = Path(tempfile.mkdtemp(prefix="anomaly-"))
    counts = count_calls(process, home)
    shutil.rmtree(home)
    made = sorted(one for one in counts if one[1] in calls)
    for thread, call in made:
        print(f"{process}, thread {thread}: {counts[thread, call]} calls of {call} in an undisturbed job", flush=True)
    if SCENES[process].new_threads:  # strace counts the calls of each thread apart, and makes all of them fail
        made = sorted({(0, call) for _, call in made})
    return [
        Series(process, thread, call, error)
        for thread, call in made
        for error in (ERRORS[call][:1] if one_error else ERRORS[call])
    ]


def _fail(series: Series, every: int) -> tuple[list[str], int]:
    """Fail one call after another; returns what ended wrongly, and how many were tried."""
    wrong, tried = [], 0
    for number in itertools.count(1, every):
        anomaly = Anomaly(series.process, series.call, series.error, number, series.thread)
        home = Path(tempfile.mkdtemp(prefix="anomaly-"))
        try:
            outcome = _begun(anomaly, home)
        except CannotBegin as error:
            wrong.append(f"{anomaly}: {error} ({home})")
            break
        if outcome.wrong and outcome.possible:
            wrong.append(f"{anomaly}: {outcome.wrong} ({home})")
            print(f"WRONG {wrong[-1]}", flush=True)
        else:
            shutil.rmtree(home)
        if not outcome.fired:
            break
        tried += outcome.possible
        if number > _MOST:
            wrong.append(f"{series}: more than {_MOST} calls")
            break
    print(f"{series}: {tried} tried, {len(wrong)} wrong", flush=True)
    return wrong, tried


if __name__ == "__main__":
    sys.exit(main())
