"""Causes a thousand random faults on three machines, and checks that no restore is torn, mixed or different.

    make chaos-nodes                                   # as root: machines are namespaces; about an hour
    python scripts/chaos/nodes.py --kills 50 --seed 7

Jobs under DistributedDataParallel and under fully_shard (FSDP2) run on three machines, and a fourth one stands by.
Ranks, agents, heads, copiers, savers, warm parents and whole machines (cut off, everything killed, memory gone) are
killed at random moments, a quarter of them while a restart is under way; what was killed comes back. Before it trains
on, every life compares its state with that of an undisturbed run at the same step. Every checkpoint that is left is
verified and loaded.
Exits with 1 if anything is not as it must be, and then keeps what the job in question has left.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import audit
import mayhem
import nodes_job
import torch
from machines.namespaces import CannotIsolate, Machines

from ftlaunch.cli.terminal.progress import progress

_KILLS_A_JOB = 20  # kills after which a job may run to its end
PLANS = [
    mayhem.Plan(kind="ddp", size="small", storage_interval=100, keep=1000),
    mayhem.Plan(kind="sharded", size="small", storage_interval=50, keep=1000),
    mayhem.Plan(kind="ddp", size="large", storage_interval=20, keep=2),
    mayhem.Plan(kind="sharded", size="large", storage_interval=20, keep=2),
]


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="how many faults (default 1000)")
    parser.add_argument("--minutes", type=float, default=120.0, help="stop killing after so long (default 120)")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed when (default 1)")
    kinds = [plan.name for plan in PLANS]
    parser.add_argument("--jobs", nargs="+", choices=kinds, default=kinds, help="kinds of jobs (default all)")
    return parser.parse_args()


def rampage(home: Path, args: argparse.Namespace, total: audit.Tally, asked: Counter[str]) -> None:
    """Run job after job until enough was killed, or something is wrong. Raises CannotIsolate."""
    dice = random.Random(args.seed)
    began = time.monotonic()
    plans = [plan for plan in PLANS if plan.name in args.jobs]
    oracles = {plan.name: mayhem.run_oracle(home, plan.kind, plan.size, nodes_job.RANKS) for plan in plans}
    until = began + 60 * args.minutes
    number = 0
    while total.kills.total() < args.kills and time.monotonic() < until and not total.problems:
        plan = plans[number % len(plans)]
        with Machines(nodes_job.MACHINES) as machines:
            job = nodes_job.NodesMayhem(
                home=home,
                number=number,
                plan=plan,
                oracle=oracles[plan.name],
                dice=dice,
                made=machines,
            )
            try:
                kills = min(args.kills - total.kills.total(), _KILLS_A_JOB)
                with progress(f"job {number}, {plan.name}", kills, "faults") as advance:
                    job.run(kills, until, advance)
                    tally = job.judge()
            except mayhem.Broken as why:
                tally = job.abandon()
                tally.problems.append(f"{job.out}: {why}")
        total.add(tally)
        asked += job.asked_storage
        number += 1
        print(
            f"{time.monotonic() - began:6.0f} s  {plan.name:13}  {tally.kills.total():3} faults, "
            f"{tally.restores.total():3} restores; {total.kills.total()} faults in all, {len(total.problems)} problems",
            flush=True,
        )
        if not tally.problems:
            shutil.rmtree(job.out)


def table(total: audit.Tally, asked: Counter[str]) -> str:
    """Return the figures as a Markdown table."""
    kills = ", ".join(f"{target} {count}" for target, count in total.kills.most_common())
    rows = [
        ("faults", f"{total.kills.total()} ({kills})"),
        ("lives begun / that came so far as to compare their state", f"{total.lives} / {total.judged}"),
        ("jobs that ended in the undisturbed state", f"{total.ends}"),
        ("checkpoints found, verified, loaded and compared", f"{total.audited}"),
    ]
    for source, count in total.restores.most_common():
        lost = ", ".join(
            f"{'not known' if steps < 0 else steps}: {times}" for steps, times in sorted(total.lost[source].items())
        )
        rows.append((f"restores from {source}", f"{count}; steps lost: times: {lost}"))
    for what, count in asked.most_common(8):
        rows.append((f"... of them not from memory after: {what}", f"{count}"))
    rows.append(("torn, mixed or differing restores, or anything else wrong", f"{len(total.problems)}"))
    return "| what | count |\n| --- | --- |\n" + "\n".join(f"| {what} | {count} |" for what, count in rows)


def main() -> int:
    """Run everything; return 1 if something is wrong, or if machines cannot be made."""
    args = parse_args()
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-chaos-nodes-"))
    total = audit.Tally()
    asked = Counter[str]()
    began = time.monotonic()
    load = os.getloadavg()[0]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM, too, leaves nothing behind
    try:
        rampage(home, args, total, asked)
    except CannotIsolate as error:
        print(f"cannot make machines of namespaces: {error}; start it as root", file=sys.stderr)
        return 1
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    seconds = time.monotonic() - began
    print(f"\n{machine}, {time.strftime('%Y-%m-%d')}; load before {load:.1f}, {seconds:.0f} s\n\n{table(total, asked)}")
    for problem in total.problems:
        print(f"PROBLEM {problem}", file=sys.stderr)
    if total.problems:
        print(f"what was left behind is in {home}", file=sys.stderr)
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
