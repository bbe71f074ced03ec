"""ftlaunch next to torchrun, NVIDIA's ft_launcher and plain python, on the same jobs, in one run; then alone, growing.

    make bench
    python scripts/bench --rounds 1 --scale 1 8       # a quick look

Two ranks on gloo. In every round each launcher runs, in turn: a small job in which a rank is killed once (races.py,
`restarts`), one in which a rank hangs, and the example job, killed once and then told to stop (`training`): with
ftlaunch its state is kept by the hooks, with the others in a file that is written at every step. The others run in an
environment of their own, .venv-peers, made at the first run. What a launcher does not do is left out of its column.
Then shapes of training are measured with the hooks and without them (steps.py), and jobs of more and more ranks.
Prints Markdown; --json writes every single figure.
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
    """Every round all launchers in turn; the figures, and what went wrong."""
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
