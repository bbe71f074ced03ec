"""Measures copies of snapshots to another machine, and the loss of a machine whose state lives on in copies.

    make bench-peers
    python scripts/bench_peers --mib 256 --rounds 1         # a quick look

Needs root, for machines made of namespaces, and eight times as much memory as --mib says. Measured are a copy of that
size next to a plain socket, the loss of a machine with that much state, and steps with and without copies. Prints
medians and ranges.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "bench_nodes")]

import copies
import link
import lost
from machines.namespaces import CannotIsolate, Machines

UNITS = {"fetched, GB/s": "", "steps lost": ""}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="of a machine")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    try:
        Machines(1).close()
    except CannotIsolate as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    if code := copies.measure(args.mib * copies.MIB):
        return code
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-peers-"))
    try:
        for mib, step_seconds in ((0, 0.1), (args.mib, 1.0)):
            print(f"\na machine with {mib} MiB of state is lost, steps of {step_seconds:g} s")
            rounds = [lost.lose(home / f"lost-{mib}-{number}", mib, step_seconds) for number in range(args.rounds)]
            for name in rounds[0]:
                copies.print_spread(name, [figures[name] for figures in rounds], UNITS.get(name, "s"))
        costs = [lost.cost(home / f"cost-{number}", 64, 0.1) for number in range(args.rounds)]
        copies.print_spread("\nsteps with copies / without (64 MiB, 0.1 s)", costs, "")
        print("\nsteps of a job that fills its link with copies / without")
        for name, ratios in link.measure(home, args.rounds).items():
            copies.print_spread(name, ratios, "")
    finally:
        shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
