"""Makes each system call of processes of ours fail in turn, and sees that the job ends well, or with a sentence.

    python -m scripts.anomalies --process supervisor --calls openat getdents64 --every 1

Of each call and each error, the first call fails in one job, the second one in the next, and so on, until a job passes
in which the call was not made so often: SQLite's own tests do that with each of its calls. Calls that an undisturbed
job does not make are left out. Processes of one job (an agent and the head, say) have a failing call each in the same
jobs; where such a job ends as it must not, each of the calls fails in a job of its own. So it is where `--in-one-job`
lets several calls of one kind fail in each job. Exits with 1 where a job ends
with exit code 70, hangs, ends without a word or with another result, or leaves a process or memory behind. Takes hours:
`--every 7` tries every seventh call, and a run with `--record FILE` goes on where an earlier one was broken off.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from scripts.anomalies.calls import ERRORS
from scripts.anomalies.jobs import SCENES
from scripts.anomalies.run import Anomaly, CannotBegin, Failed, Outcome, count_calls, run
from scripts.anomalies.series import Left, Series

_TRIES = 3
"""times that a job may not begin"""


def main() -> int:
    """Run, and print the numbers."""
    options = _parse()
    if shutil.which("strace") is None:
        print("cannot make calls fail: strace is not installed", file=sys.stderr)
        return 2
    wrong = []
    for together in _jobs(options.process or tuple(SCENES)):
        wrong += _fail_calls_of(together, options)
    for line in wrong:
        print(f"  {line}")
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="anomalies")
    parser.add_argument("--process", nargs="*", choices=tuple(SCENES), help="all if not given")
    parser.add_argument("--calls", nargs="*", choices=tuple(ERRORS), help="all if not given")
    parser.add_argument("--every", type=int, default=1, help="of the calls of one kind, each n-th is made to fail")
    parser.add_argument("--one-error", action="store_true", help="the first error of each call alone")
    parser.add_argument(
        "--in-one-job", type=int, default=1, help="so many calls of one kind fail in a job, evenly apart"
    )
    parser.add_argument("--workers", type=int, default=2, help="jobs at once")
    parser.add_argument("--record", type=Path, help="a file of what was tried: that is not tried again")
    return parser.parse_args()


def _jobs(processes: Sequence[str]) -> list[list[str]]:
    """Which processes are of one job."""
    found: dict[object, list[str]] = {}
    for process in processes:
        found.setdefault(SCENES[process].job, []).append(process)
    return list(found.values())


def _fail_calls_of(processes: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Fail the calls of processes of one job; returns what ended wrongly."""
    began = time.monotonic()
    calls = options.calls or tuple(ERRORS)
    left = [Left(_series(one, calls, options), options.record) for one in processes]
    with ThreadPoolExecutor(options.workers) as pool:
        for worker in [pool.submit(_fail_in_turn, left, options.every) for _ in range(options.workers)]:
            worker.result()
    seconds, wrong = time.monotonic() - began, []
    for process, of_process in zip(processes, left, strict=True):
        tried: Counter[str] = Counter()
        for series in of_process.over:
            tried[series.call] += series.tried
            wrong += series.wrong
        count = sum(len(series.wrong) for series in of_process.over)
        print(f"{process}: {sum(tried.values())} failing calls: {dict(tried)}; {count} ended wrongly", flush=True)
    print(f"{', '.join(processes)}: {seconds:.0f} s", flush=True)
    return wrong


def _series(process: str, calls: Sequence[str], options: argparse.Namespace) -> list[Series]:
    """What there is to be tried: each call that an undisturbed job makes, by thread."""
    home = Path(tempfile.mkdtemp(prefix="anomaly-"))
    counts = count_calls(process, home)
    shutil.rmtree(home)
    made = sorted(one for one in counts if one[1] in calls)
    for thread, call in made:
        print(f"{process}, thread {thread}: {counts[thread, call]} calls of {call} in an undisturbed job", flush=True)
    if SCENES[process].new_threads:  # strace counts the calls of each thread apart, and makes all of them fail
        counts = Counter(
            {(0, call): sum(counts[of_thread] for of_thread in made if of_thread[1] == call) for _, call in made}
        )
        made = sorted(counts)
    return [
        Series(process, thread, call, error, counts[thread, call], options.in_one_job)
        for thread, call in made
        for error in (ERRORS[call][:1] if options.one_error else ERRORS[call])
    ]


# --- one worker -----------------------------------------------------------------------------------------------


def _fail_in_turn(left: Sequence[Left], every: int) -> None:
    """Fail one call after another, of each process one in each job, until nothing is left of any."""
    under_way: dict[Left, Series] = {}
    while True:
        for of_process in left:
            if of_process not in under_way and (series := of_process.take()) is not None:
                under_way[of_process] = series
        if not under_way:
            return
        for of_process in _fail(list(under_way.items()), every):
            of_process.end(under_way.pop(of_process))


def _fail(taken: Sequence[tuple[Left, Series]], every: int) -> list[Left]:
    """Fail the next call of each series in one job; returns of whom the series are over."""
    outcome, home = _run([series.next for _, series in taken])
    is_wrong = bool(outcome.wrong) and outcome.are_possible
    is_one = sum(failed.calls for failed in outcome.failed) == 1
    names, known = " with ".join(str(series.next) for _, series in taken), _wrongs(taken)
    over: list[Left] = []
    for (of_process, series), failed in zip(taken, outcome.failed, strict=True):
        if len(taken) > 1 and not failed.calls:  # because another one has ended the job before?
            over += _fail([(of_process, series)], every)
            continue
        if outcome.wrong and not is_one:  # because of which of them?
            _fail_each(series, failed)
        series.advance(every, failed, is_done=outcome.is_done)
        over += [of_process] if series.is_over else []
    if is_wrong and _wrongs(taken) == known:  # none of them alone ends it so
        taken[0][1].wrong.append(f"{names}: {outcome.wrong} ({home})")
        print(f"WRONG {taken[0][1].wrong[-1]}", flush=True)
    return over


def _fail_each(series: Series, failed: Failed) -> None:
    """Fail each of the calls alone that have failed in one job, and that Linux can make fail."""
    together = series.next
    for before in sorted(set(failed.possible)):
        one = replace(together, number=together.number + before * together.step, step=0, last=0)
        outcome, home = _run([one])
        if outcome.wrong and outcome.are_possible:
            series.wrong.append(f"{one}: {outcome.wrong} ({home})")
            print(f"WRONG {series.wrong[-1]}", flush=True)


def _wrongs(taken: Sequence[tuple[Left, Series]]) -> int:
    return sum(len(series.wrong) for _, series in taken)


def _run(anomalies: Sequence[Anomaly]) -> tuple[Outcome, Path]:
    """Run a job with failing calls; a directory that shows what went wrong is kept.

    A job that did not begin, on a machine that stood still, is tried again, and is wrong at last.
    """
    for _ in range(_TRIES):
        home = Path(tempfile.mkdtemp(prefix="anomaly-"))
        try:
            outcome = run(anomalies, home)
            break
        except CannotBegin as error:
            outcome = Outcome(
                [Failed(0, (), are_possible=True)] * len(anomalies), is_done=False, wrong=str(error), said=""
            )
    if not outcome.wrong or not outcome.are_possible:
        shutil.rmtree(home)
    return outcome, home


if __name__ == "__main__":
    sys.exit(main())
