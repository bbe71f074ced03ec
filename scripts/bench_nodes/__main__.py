"""Measures a job of three machines, made of namespaces, under ftlaunch and under torchrun, in one run. Needs root.

    make bench-nodes
    python scripts/bench_nodes --rounds 1             # a quick look

Three machines have two ranks each on gloo; with ftlaunch further machines stand by. In every round each launcher runs
in turn, on machines of its own, and a rank is killed. With ftlaunch, after that, a machine's agent and ranks are
killed, a machine falls silent because its link goes down, the head's process is killed, and then the head's machine.
torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, so that the ranks have a store of their own. torchrun has no
standby for a fixed number of nodes, so that these faults are left out. "one machine" is ftlaunch with all six ranks on
one machine, which shows what the start of the ranks takes by itself. The results are printed as Markdown; --json writes
every single figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "bench")]

import trial
from machine import cpu_seconds, machine
from machines.namespaces import CannotIsolate, Machines
from tables import as_table, spread

Figures = dict[str, float]
_WATCHED = 3.0  # seconds for which processor time is counted
_ROWS = {
    "launch to ready on all machines": ("ms", 1000),
    "a rank's death to ready on all machines": ("ms", 1000),
    "a machine's agent and ranks killed to ready, standby": ("ms", 1000),
    "a machine silent to ready, standby": ("ms", 1000),
    "the head's process killed to a new head, no restart": ("ms", 1000),
    "the head's machine killed to ready, standby": ("ms", 1000),
    "agent, RSS": ("MiB", 1),
    "agent, PSS": ("MiB", 1),
    "agent, while training": ("% of a core", 100),
    "head, RSS": ("MiB", 1),
    "head, PSS": ("MiB", 1),
    "head, while training": ("% of a core", 100),
}


def memory(process: psutil.Process, name: str, figures: Figures) -> None:
    """Note resident memory (RSS), and the process's share of it where several processes share it (PSS), in MiB."""
    found = process.memory_full_info()
    figures[f"{name}, RSS"] = found.rss / 2**20
    figures[f"{name}, PSS"] = found.pss / 2**20


def share_of_a_core(processes: dict[str, psutil.Process], figures: Figures) -> None:
    """Note the share of a core that each process uses, all over the same seconds."""

    def used() -> dict[str, float]:
        return {name: cpu_seconds(process.pid) for name, process in processes.items()}

    before = used()
    began = time.monotonic()
    time.sleep(_WATCHED)
    after = used()
    seconds = time.monotonic() - began
    for name in processes:
        figures[f"{name}, while training"] = (after[name] - before[name]) / seconds


def begin(run: trial.Trial, figures: Figures, machines: int = trial.NODES) -> None:
    """Start the agents, and note the time until all ranks are ready."""
    began = run.start(*range(machines))
    figures["launch to ready on all machines"] = run.ready(0.0, "start") - began


def die(run: trial.Trial, figures: Figures) -> None:
    """Kill a rank, and note the time until all ranks are ready again."""
    died = run.kill_a_rank()
    figures["a rank's death to ready on all machines"] = run.ready(died, "restart") - died


def theirs(home: Path, figures: Figures) -> None:
    """Measure torchrun."""
    with Machines(trial.NODES) as machines:
        run = trial.TheirTrial(home, machines)
        begin(run, figures)
        run.calm()
        agent = run.process(1)
        memory(agent, "agent", figures)
        share_of_a_core({"agent": agent}, figures)
        die(run, figures)


def ours(home: Path, figures: Figures) -> None:
    """Measure ftlaunch."""
    with Machines(trial.NODES + 2) as machines:
        run = trial.OurTrial(home, machines)
        begin(run, figures)
        run.stand_by(trial.NODES)
        agent = run.process(1)
        head = run.head()
        memory(agent, "agent", figures)
        memory(head, "head", figures)
        share_of_a_core({"agent": agent, "head": head}, figures)
        die(run, figures)
        run.calm()
        killed = time.monotonic()
        machines[2].kill_all()
        figures["a machine's agent and ranks killed to ready, standby"] = run.ready(killed, "standby") - killed
        run.stand_by(2)
        cut = time.monotonic()
        machines[3].cut()
        figures["a machine silent to ready, standby"] = run.ready(cut, "second standby") - cut
        run.stand_by(trial.NODES + 1)
        figures["the head's process killed to a new head, no restart"] = run.replace_head()
        killed = time.monotonic()
        machines[0].kill_all()
        figures["the head's machine killed to ready, standby"] = run.ready(killed, "third standby") - killed


def on_one(home: Path, figures: Figures) -> None:
    """Measure ftlaunch with all ranks on one machine."""
    with Machines(1) as machines:
        run = trial.OneMachineTrial(home, machines)
        begin(run, figures, machines=1)
        run.calm()
        die(run, figures)


RACERS: dict[str, Callable[[Path, Figures], None]] = {
    "ftlaunch": ours,
    "ftlaunch, one machine": on_one,
    "torchrun": theirs,
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=RACERS, action="append", help="these launchers; all where none is given")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--keep", action="store_true", help="keep the run dirs and what was said")
    args = parser.parse_args()
    try:
        Machines(1).close()
    except CannotIsolate as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-nodes-"))
    load = os.getloadavg()[0]
    found: dict[str, list[Figures]] = {name: [] for name in args.only or RACERS}
    wrong = []
    try:
        for number in range(args.rounds):
            for name in found:
                found[name].append({})
                try:
                    RACERS[name](home / f"{name.replace(', ', '-').replace(' ', '-')}-{number}", found[name][-1])
                except trial.Failed as failed:
                    wrong.append(f"{name}, round {number + 1}: {failed}")
            print(f"round {number + 1} of {args.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    finally:
        if args.keep:
            print(f"kept: {home}", file=sys.stderr)
        else:
            shutil.rmtree(home)
    print(f"{machine()}; load {load:.1f} before, {os.getloadavg()[0]:.1f} after\n")
    print("\n".join([table(found), "", *wrong]))
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rounds": found, "wrong": wrong}, indent=1) + "\n")
    return 0


def table(found: dict[str, list[Figures]]) -> str:
    """Return a table with a row for each figure and a column for each launcher."""
    rows = [["", *found]]
    for figure, (unit, factor) in _ROWS.items():
        columns = [[figures[figure] for figures in rounds if figure in figures] for rounds in found.values()]
        rows.append([figure, *(spread(values, unit, factor) for values in columns)])
    return as_table(rows)


if __name__ == "__main__":
    sys.exit(main())
