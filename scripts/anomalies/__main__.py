"""Makes each system call of ftlaunch's processes fail in turn, and checks that the job ends well or with a sentence.

    python -m scripts.anomalies --process supervisor --calls openat getdents64 --every 1

For each call and each error, the first such call fails in one job, the second in the next job, and so on, until a job
passes that makes fewer such calls. SQLite's own tests do the same with SQLite's calls. Calls that an undisturbed job
does not make are left out.

Several processes of one kind of job, such as an agent and the head, share jobs: one call of each process fails. With
`--in-one-job` several calls of one kind fail in each job. If a job with several failing calls ends wrongly, each of
these calls fails again in a job of its own.

Exits with 1 if a job ends with exit code 70, hangs, ends without a word or with another result, or leaves a process or
memory behind. A whole run takes hours: `--every 7` tries every seventh call, and a run with `--record FILE` resumes an
interrupted one.
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
"""how often a job is tried that does not begin"""


def main() -> int:
    """Run the jobs, print the numbers, and return the exit code."""
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
    """Group the processes by the kind of job in which they run."""
    found: dict[object, list[str]] = {}
    for process in processes:
        found.setdefault(SCENES[process].job, []).append(process)
    return list(found.values())


def _fail_calls_of(processes: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Fail the calls of the processes of one kind of job; return a line for each wrong end."""
    began = time.monotonic()
    calls = options.calls or tuple(ERRORS)
    left = [Left(_series(process, calls, options), options.record) for process in processes]
    with ThreadPoolExecutor(options.workers) as pool:
        for worker in [pool.submit(_fail_in_turn, left, options.every) for _ in range(options.workers)]:
            worker.result()
    seconds = time.monotonic() - began
    wrong: list[str] = []
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
    """Count the calls of an undisturbed job; return a series for each call, thread and error that is to be tried."""
    home = Path(tempfile.mkdtemp(prefix="anomaly-"))
    counts = count_calls(process, home)
    shutil.rmtree(home)
    made = sorted((thread, call) for thread, call in counts if call in calls)
    for thread, call in made:
        print(f"{process}, thread {thread}: {counts[thread, call]} calls of {call} in an undisturbed job", flush=True)
    if SCENES[process].new_threads:  # strace counts the calls of each thread apart, and makes all of them fail
        by_call: Counter[tuple[int, str]] = Counter()
        for thread, call in made:
            by_call[0, call] += counts[thread, call]
        counts = by_call
        made = sorted(counts)
    return [
        Series(
            process=process,
            thread=thread,
            call=call,
            error=error,
            usual=counts[thread, call],
            in_one_job=options.in_one_job,
        )
        for thread, call in made
        for error in (ERRORS[call][:1] if options.one_error else ERRORS[call])
    ]


# --- one worker -----------------------------------------------------------------------------------------------


def _fail_in_turn(left: Sequence[Left], every: int) -> None:
    """Run jobs, each with a failing call of every process that has series left, until no series is left."""
    under_way: dict[Left, Series] = {}
    while True:
        for of_process in left:
            if of_process not in under_way and (series := of_process.pop_series()) is not None:
                under_way[of_process] = series
        if not under_way:
            return
        for of_process in _fail(list(under_way.items()), every):
            of_process.end(under_way.pop(of_process))


def _fail(failing: Sequence[tuple[Left, Series]], every: int) -> list[Left]:
    """Fail the next call of each series in one job; return the processes whose series are over."""
    outcome, home = _run([series.next for _, series in failing])
    is_wrong = bool(outcome.wrong) and outcome.are_possible
    is_single = sum(failed.calls for failed in outcome.failed) == 1
    names = " with ".join(str(series.next) for _, series in failing)
    known = _wrongs(failing)
    over: list[Left] = []
    for (of_process, series), failed in zip(failing, outcome.failed, strict=True):
        if len(failing) > 1 and not failed.calls:  # another failing call may have ended the job before this one
            over += _fail([(of_process, series)], every)
            continue
        if outcome.wrong and not is_single:  # any of the failing calls may be the cause
            _fail_each(series, failed)
        series.advance(every, failed, is_done=outcome.is_done)
        over += [of_process] if series.is_over else []
    if is_wrong and _wrongs(failing) == known:  # the calls end the job wrongly only together
        failing[0][1].wrong.append(f"{names}: {outcome.wrong} ({home})")
        print(f"WRONG {failing[0][1].wrong[-1]}", flush=True)
    return over


def _fail_each(series: Series, failed: Failed) -> None:
    """Fail alone each call that has failed in a shared job, if Linux can give its error there."""
    together = series.next
    for before in sorted(set(failed.possible)):
        single = replace(together, number=together.number + before * together.step, step=0, last=0)
        outcome, home = _run([single])
        if outcome.wrong and outcome.are_possible:
            series.wrong.append(f"{single}: {outcome.wrong} ({home})")
            print(f"WRONG {series.wrong[-1]}", flush=True)


def _wrongs(failing: Sequence[tuple[Left, Series]]) -> int:
    return sum(len(series.wrong) for _, series in failing)


def _run(anomalies: Sequence[Anomaly]) -> tuple[Outcome, Path]:
    """Run a job with failing calls; return the outcome and the job's directory, which is kept if the outcome is wrong.

    On a machine that stands still a job may not begin. Such a job is tried again a few times, and then counts as wrong.
    """
    for _ in range(_TRIES):
        home = Path(tempfile.mkdtemp(prefix="anomaly-"))
        try:
            outcome = run(anomalies, home)
            break
        except CannotBegin as error:
            not_failed = Failed(calls=0, possible=(), are_possible=True)
            outcome = Outcome(
                failed=[not_failed] * len(anomalies),
                is_done=False,
                wrong=str(error),
                said="",
            )
    if not outcome.wrong or not outcome.are_possible:
        shutil.rmtree(home)
    return outcome, home


if __name__ == "__main__":
    sys.exit(main())
