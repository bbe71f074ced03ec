"""Measures ftlaunch next to torchrun, NVIDIA's ft_launcher and plain python, on the same jobs in one run.

    make bench
    python scripts/bench --rounds 1 --scale 1 8       # a quick look

All jobs have two ranks on gloo. In every round each launcher runs in turn: a small job in which a rank is killed once
(`restarts` in races.py), a job in which a rank hangs, and the example job, which is killed once and later told to stop
(`training`). With ftlaunch the hooks keep the example's state; with the others a file is written at every step. The
other launchers run in an environment of their own, .venv-peers, which the first run makes. What a launcher cannot do is
left out of its column.

Then training steps of several shapes are measured with and without the hooks (steps.py), and ftlaunch alone with
growing numbers of ranks (scale.py). The results are printed as Markdown; --json writes every single figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import peers
import scale
import steps
import tables
from machine import machine
from races import RACES, RANKS
from trial import Failed, remove_memory


def run_races(home: Path, rounds: int) -> tuple[dict[str, list[dict[str, float]]], list[str]]:
    """Run all launchers in every round, in turn; return the figures by launcher, and a line for each failure."""
    racers = peers.launchers(RANKS)
    found: dict[str, list[dict[str, float]]] = {racer.name: [] for racer in racers}
    wrong = []
    for number in range(rounds):
        for racer in racers:
            figures: dict[str, float] = {}
            for name, race in RACES.items():
                place = home / f"{number}-{len(found[racer.name])}-{racers.index(racer)}-{name}"
                try:
                    race(place, racer, figures)
                except Failed as failed:
                    wrong.append(f"{racer.name}, round {number + 1}, {name}: {failed}")
            found[racer.name].append(figures)
        print(f"round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return found, wrong


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of the race; 0: none")
    parser.add_argument("--scale", type=int, nargs="*", default=[1, 8, 64, 256, 1024], help="numbers of ranks")
    parser.add_argument("--deaths", type=int, default=5, help="of each number of ranks")
    parser.add_argument("--steps", type=int, default=3, help="rounds of what a step costs with the hooks; 0: none")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-"))
    out: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg()}
    try:
        if args.rounds:
            out["peers"] = peers.prepare()
            out["race"], out["wrong"] = run_races(home, args.rounds)
        out["steps"] = steps.measure(home, args.steps, 5.0)
        out["scale"] = {ranks: scale.measure(home / f"scale-{ranks}", ranks, args.deaths, 1.0) for ranks in args.scale}
    finally:
        shutil.rmtree(home)
        remove_memory()
    out["load_after"] = os.getloadavg()
    print(f"{out['machine']}; load {out['load_before'][0]:.1f} before, {out['load_after'][0]:.1f} after")
    if args.rounds:
        print(f"\nThe others: {out['peers']}.\n\n{tables.race(out['race'])}\n")
        rivals = [name for name in out["race"] if name not in ("python", "ftlaunch")]
        print(tables.ratios(out["race"], "ftlaunch", rivals))
        print("\n".join(["", *out["wrong"]]))
    if args.steps:
        print(f"\n{steps.table(out['steps'])}")
    if args.scale:
        print(f"\n{tables.growth(out['scale'])}")
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
