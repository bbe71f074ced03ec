"""Makes each system call of a process of ours fail in turn, and sees that the job ends well, or with a sentence.

    python -m scripts.anomalies --process supervisor --calls openat getdents64 --every 1

Of each call and each error, the first call fails in one job, the second one in the next, and so on, until a job passes
in which the call was not made so often: SQLite's own tests do that with each of its calls. Exits with 1 where a job
ends with exit code 70, hangs, ends without a word, or leaves a process or memory behind. Takes hours; `--every 7`
tries every seventh call.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.anomalies.calls import ERRORS
from scripts.anomalies.run import Anomaly, Outcome, run

_MOST = 1000
"""calls of one kind in one job"""


def main() -> int:
    """Run, and print the numbers."""
    options = _parse()
    if shutil.which("strace") is None:
        print("cannot make calls fail: strace is not installed", file=sys.stderr)
        return 2
    pairs = [(call, error) for call in options.calls or ERRORS for error in ERRORS[call]]
    if options.one_error:
        pairs = [(call, ERRORS[call][0]) for call in options.calls or ERRORS]
    tried: Counter[str] = Counter()
    wrong: list[str] = []
    began = time.monotonic()
    with ThreadPoolExecutor(options.workers) as pool:
        for lines, count in pool.map(lambda pair: _series(options.process, pair[0], pair[1], options.every), pairs):
            tried.update(count)
            wrong += lines
    seconds = time.monotonic() - began
    print(f"{sum(tried.values())} failing calls in {seconds:.0f} s: {dict(tried)}; {len(wrong)} of them ended wrongly")
    for line in wrong:
        print(f"  {line}")
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="anomalies")
    parser.add_argument("--process", choices=("supervisor", "fork server"), default="supervisor")
    parser.add_argument("--calls", nargs="*", choices=tuple(ERRORS), help="all if not given")
    parser.add_argument("--every", type=int, default=1, help="of the calls of one kind, each n-th is made to fail")
    parser.add_argument("--one-error", action="store_true", help="the first error of each call alone")
    parser.add_argument("--workers", type=int, default=2, help="jobs at once")
    return parser.parse_args()


def _series(process: str, call: str, error: str, every: int) -> tuple[list[str], Counter[str]]:
    """Fail one call after another; returns what ended wrongly, and how many were tried of the call."""
    wrong, tried = [], Counter[str]()
    for number in itertools.count(1, every):
        anomaly = Anomaly(process, call, error, number)
        home = Path(tempfile.mkdtemp(prefix="anomaly-"))
        outcome: Outcome = run(anomaly, home)
        if outcome.wrong:
            wrong.append(f"{anomaly}: {outcome.wrong} ({home})")
            print(f"WRONG {wrong[-1]}", flush=True)
        else:
            shutil.rmtree(home)
        if not outcome.fired:
            break
        tried[call] += 1
        if number > _MOST:
            wrong.append(f"{process}: {call}: more than {_MOST} calls")
            break
    print(f"{process}: {call} {error}: {tried[call]} tried, {len(wrong)} wrong", flush=True)
    return wrong, tried


if __name__ == "__main__":
    sys.exit(main())
