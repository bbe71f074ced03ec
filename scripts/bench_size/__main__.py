"""Measures how a job's head grows with its nodes: the real head, and up to 2,048 pretended agents of 8 ranks.

    make bench-size
    python scripts/bench_size --sizes 256 --rounds 1        # a quick look

The head is a process as an agent starts it: sockets, journal, control socket, metrics, report. Two processes speak the
agents' side of the wire protocol on the loopback, by ftlaunch's own code; their ranks are pages in memory that make a
step a second. All three processes share the processors of this machine, and the kernel counts as the head's time what
it does for the agents' ends of the head's connections. A head with a machine of its own is therefore faster.
A figure without "CPU" is wall-clock time. The results are printed as Markdown; --json writes every single figure.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "bench"), str(Path(__file__).parents[2])]

from machine import cpu_seconds, machine
from tables import as_table
from trial import Failed, Trial
from views import Figures, measure_report, measure_views

_SETTLES = 8.0  # seconds after a start, in which all ranks resume
_RESTS = 12.0  # further seconds, in which the head hears of all ranks, and looks at their pages often
_WATCHED = 30.0  # seconds for which processor time is counted: two looks at the pages of very many ranks
_SILENT = 30.0  # seconds for which a disk is silent
_SIZES = (256, 1024, 2048)


def measure(home: Path, nodes: int, rounds: int, *, with_views: bool) -> dict[str, list[float]]:
    """Measure one job of `nodes` nodes; return a list of measurements for each figure."""
    found: dict[str, list[float]] = {}

    def note(figures: Figures) -> None:
        for name, value in figures.items():
            found.setdefault(name, []).append(value)

    trial = Trial(home, nodes, metrics=with_views, options=["--no-report-page"])
    try:
        note(_begin(trial))
        note(_watch_rest(trial))
        for number in range(rounds):
            note(_lose_rank(trial, number + 2))
        starts = rounds + 2
        note(_lose_node(trial, starts))
        note(_silence_node(trial, starts + 1))
        if with_views:
            figures: Figures = {}
            measure_views(trial, figures)
            note(figures)
        note(_lose_head(trial))
        note({"head's memory at the end": trial.head.memory_info().rss, "all ranks done to exit": trial.finish()})
        if with_views:
            figures = {}
            measure_report(trial, figures)
            note(figures)
    finally:
        trial.close()
    return found


def measure_on_silent_disk(home: Path, nodes: int) -> dict[str, list[float]]:
    """Measure a restart while the file system of the run dir, with journal and logs, answers nothing."""
    from tests.support.fuse import mounted

    with mounted(home) as disk:
        trial = Trial(home, nodes, run_dir=disk.place / "run", options=["--no-report-page"])
        try:
            trial.start_head()
            trial.start_agents()
            time.sleep(_SETTLES)
            with disk.silent():
                died = trial.agents[0].ask("lose rank", agent=3)["at"]
                trial.wait_left(died, trial.nodes)
                left = max(answer["left"] for answer in trial.read_summaries())
                with suppress(Failed):  # a restart that waits for the disk shows in the figure
                    trial.wait_starts(2, trial.nodes, patience=_SILENT)
            trial.wait_starts(2, trial.nodes)
            started = max(answer["started"] for answer in trial.read_summaries())
            time.sleep(_SETTLES)
            trial.finish()
        finally:
            trial.close()
    return {
        "disk silent: a rank dies to all orders to end": [left - died],
        f"disk silent for {_SILENT:.0f} s or until then: a rank dies to all orders to start": [started - died],
    }


def _begin(trial: Trial) -> Figures:
    trial.start_head()
    before = cpu_seconds(trial.head.pid)
    began = time.monotonic()
    ended = trial.start_agents()
    return {"first agent's start to all orders": ended - began, "the same, head's CPU": _cpu(trial, before)}


def _cpu(trial: Trial, before: float) -> float:
    return cpu_seconds(trial.head.pid) - before


def _watch_rest(trial: Trial) -> Figures:
    time.sleep(_SETTLES + _RESTS)
    before = cpu_seconds(trial.head.pid)
    began = time.monotonic()
    time.sleep(_WATCHED)
    share = _cpu(trial, before) / (time.monotonic() - began)
    return {"at rest, head's CPU": share, "at rest, head's memory": trial.head.memory_info().rss}


def _lose_rank(trial: Trial, starts: int) -> Figures:
    """Kill a rank, and measure the restart. starts: how often each node will then have been told to start its ranks."""
    for process in trial.agents:
        process.ask("watch")
    before = cpu_seconds(trial.head.pid)
    died = trial.agents[0].ask("lose rank", agent=3)["at"]
    trial.wait_left(died, trial.nodes)
    cpu_to_leave = _cpu(trial, before)
    left = max(answer["left"] for answer in trial.read_summaries())
    trial.wait_starts(starts, trial.nodes)
    cpu_to_start = _cpu(trial, before)
    started = max(answer["started"] for answer in trial.read_summaries())
    traffic = [process.ask("traffic") for process in trial.agents]
    time.sleep(_SETTLES)
    return {
        "a rank dies to all orders to end": left - died,
        "the same, to end: head's CPU": cpu_to_leave,
        "a rank dies to all orders to start": started - died,
        "the same, to start: head's CPU": cpu_to_start,
        "messages a node a restart, the most": max(counted["counts"][-1] for counted in traffic),
        "bytes a node a restart, the most": max(counted["bytes"][-1] for counted in traffic),
    }


def _lose_node(trial: Trial, starts: int) -> Figures:
    """Have a machine vanish at once, and measure the restart with a standby in its place."""
    died = trial.lose_agent("die", 5)
    trial.wait_starts(starts, trial.nodes - 1)
    started = max(answer["started"] for answer in trial.read_summaries())
    time.sleep(_SETTLES)
    return {"a node ends to all orders to start": started - died}


def _silence_node(trial: Trial, starts: int) -> Figures:
    """Have a node fall silent, and measure the restart with another standby in its place."""
    fell = trial.lose_agent("fall silent", 6)
    trial.wait_starts(starts, trial.nodes - 2)
    started = max(answer["started"] for answer in trial.read_summaries())
    time.sleep(_SETTLES)
    return {"a node falls silent to all orders to start, beyond --node-timeout": started - fell - trial.timeout}


def _lose_head(trial: Trial) -> Figures:
    killed, started, met = trial.succeed_head()
    time.sleep(_SETTLES)
    if not trial.events("attempt_adopted"):
        raise Failed(f"the new head has not taken up the ranks:\n{trial.said()}")
    return {"the head is killed to its successor": started - killed, "the successor to all welcomes": met - started}


# --- told ---------------------------------------------------------------------------------------------------------


def _shown(name: str, values: list[float]) -> str:
    middle = median(values)
    most = max(values)
    if "size" in name or "memory" in name:
        return f"{middle / 2**20:.3g} MiB"
    if name.startswith(("messages", "bytes")):
        return f"{most:,.0f}"
    if name == "at rest, head's CPU":
        return f"{100 * middle:.3g} % of a core"
    return f"{middle:.3g} s" if len(values) == 1 else f"{middle:.3g} s ({min(values):.3g} to {most:.3g})"


def table(found: dict[int, dict[str, list[float]]]) -> str:
    """Return a table with a row for each figure and a column for each number of nodes.

    The last column shows the growth from the smallest to the largest number.
    """
    sizes = list(found)
    growth = sizes[-1] / sizes[0]
    rows = [["", *(f"{nodes:,} nodes" for nodes in sizes), f"the last to the first ({growth:.3g} x the nodes)"]]
    for name in found[sizes[-1]]:
        first, last = (median(found[size].get(name, [0.0])) for size in (sizes[0], sizes[-1]))
        ratio = f"{last / first:.3g}" if first > 0 else ""
        rows.append(
            [name, *(_shown(name, figures[name]) if name in figures else "" for figures in found.values()), ratio]
        )
    return as_table(rows)


def _raise_priority(nice: int) -> None:
    """Give this process and its children priority over other processes of this machine, which are not measured."""
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    group = Path("/proc/self/autogroup")
    if group.exists():  # with autogroups the kernel weighs sessions against each other
        os.setsid()
        group.write_text(str(nice))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES, help="numbers of nodes, the least first")
    parser.add_argument("--rounds", type=int, default=3, help="deaths of a rank for each size")
    parser.add_argument("--no-views", action="store_true", help="measure no status, top, dashboard, metrics and report")
    parser.add_argument("--silent-disk", action="store_true", help="only restarts while the run dir's disk is silent")
    parser.add_argument("--nice", type=int, default=0, help="below 0 where others use this machine, too; takes root")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    if args.nice:
        if not os.fork():  # only a process that leads no group can begin a session of its own
            _raise_priority(args.nice)
            os._exit(_run(args))
        return os.waitstatus_to_exitcode(os.wait()[1])
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(args.sizes) * 9 + 200
    if hard < most:
        print(f"cannot measure: {most} descriptors are needed, and {hard} are allowed (ulimit -Hn)", file=sys.stderr)
        return 1
    found: dict[int, dict[str, list[float]]] = {}
    wrong = []
    load = os.getloadavg()[0]
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-size-"))
    try:
        for nodes in args.sizes:
            (home / str(nodes)).mkdir()
            try:
                if args.silent_disk:
                    found[nodes] = measure_on_silent_disk(home / str(nodes), nodes)
                else:
                    found[nodes] = measure(home / str(nodes), nodes, args.rounds, with_views=not args.no_views)
            except Failed as failed:
                wrong.append(f"{nodes} nodes: {failed}")
            print(f"{nodes} nodes, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    finally:
        shutil.rmtree(home)
    print(f"{machine()}; load {load:.1f} before, {os.getloadavg()[0]:.1f} after\n")
    if found:
        print(table(found))
    print("\n".join(wrong))
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "found": found, "wrong": wrong}, indent=1) + "\n")
    sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
