"""Kills processes of jobs at a thousand random moments, and checks that no restore is torn, empty or mixed.

    make chaos                                   # 1,000 kills, ten minutes
    python scripts/chaos --kills 50 --seed 7

Jobs under DistributedDataParallel and under fully_shard (FSDP2) run under ftlaunch with a snapshot at every step, with
small state, and with large state, whose copy lasts longer. Ranks, all ranks, the saver, the warm parent, the supervisor
and the whole node (whose memory is then gone) are killed at random moments of a life: while it starts, restores, takes
its first snapshot, trains or saves. Before it trains on, every life compares its state with that of an undisturbed run
at the same step. Every checkpoint that is left is verified and loaded. Lost steps are counted from notes of the ranks.
Exits with 1 if anything is not as it must be, and then keeps what the job in question has left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import audit
import mayhem
import torch

from ftlaunch.cli.terminal.progress import progress
from ftlaunch.system import processes

_KILLS_A_JOB = 60  # kills after which a job may run to its end
PLANS = [
    mayhem.Plan(kind="ddp", size="small", storage_interval=50, keep=1000),
    mayhem.Plan(kind="sharded", size="small", storage_interval=7, keep=1000),
    mayhem.Plan(kind="ddp", size="large", storage_interval=6, keep=1000),
    mayhem.Plan(kind="loose", size="large", storage_interval=20, keep=2),
    mayhem.Plan(kind="ddp", size="small", storage_interval=20, keep=1),
    mayhem.Plan(kind="sharded", size="small", storage_interval=5, keep=2),
    mayhem.Plan(kind="sharded", size="large", storage_interval=6, keep=1),
    mayhem.Plan(kind="loose", size="small", storage_interval=20, keep=1),
]


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="how many SIGKILLs (default 1000)")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop killing after so long (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed when (default 1)")
    kinds = sorted({plan.name for plan in PLANS})
    parser.add_argument("--jobs", nargs="+", choices=kinds, default=kinds, help="kinds of jobs (default all)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def rampage(home: Path, args: argparse.Namespace, total: audit.Tally) -> None:
    """Run job after job until enough was killed, or something is wrong."""
    dice = random.Random(args.seed)
    began = time.monotonic()
    plans = [plan for plan in PLANS if plan.name in args.jobs]
    kinds = sorted({(plan.kind, plan.size) for plan in plans})
    oracles = {(kind, size): mayhem.run_oracle(home, kind, size) for kind, size in kinds}

    until = began + 60 * args.minutes
    number = 0
    while total.kills.total() < args.kills and time.monotonic() < until and not total.problems:
        plan = plans[number % len(plans)]
        job = mayhem.Mayhem(
            home=home,
            number=number,
            plan=plan,
            oracle=oracles[plan.kind, plan.size],
            dice=dice,
        )
        try:
            kills = min(args.kills - total.kills.total(), _KILLS_A_JOB)
            with progress(f"job {number}, {plan.name}", kills, "kills") as advance:
                job.run(kills, until, advance)
                tally = job.judge()
        except mayhem.Broken as why:
            tally = job.abandon()
            tally.problems.append(f"{job.out}: {why}")
        except BaseException:
            job.abandon()
            raise
        total.add(tally)
        number += 1
        print(
            f"{time.monotonic() - began:6.0f} s  {plan.name:13}  {tally.kills.total():3} kills, "
            f"{tally.restores.total():3} restores; {total.kills.total()} kills in all, {len(total.problems)} problems",
            flush=True,
        )
        if not tally.problems:
            shutil.rmtree(job.out)


def table(total: audit.Tally, seconds: float) -> str:
    """Return the figures as a Markdown table."""
    kills = ", ".join(f"{target} {count}" for target, count in total.kills.most_common())
    rows = [
        ("SIGKILLs", f"{total.kills.total()} ({kills})"),
        ("kills a minute", f"{60 * total.kills.total() / seconds:.0f}"),
        ("lives begun / that came so far as to compare their state", f"{total.lives} / {total.judged}"),
        ("jobs that ended in the undisturbed state", f"{total.ends}"),
        ("checkpoints found, verified, loaded and compared", f"{total.audited}"),
    ]
    for source, count in total.restores.most_common():
        lost = ", ".join(f"{steps}: {times}" for steps, times in sorted(total.lost[source].items()))
        where = "nothing (the node lost, storage empty)" if source == "fresh" else source
        rows.append((f"restores from {where}, compared", f"{count}; steps lost: times: {lost}"))
    rows.append(("torn, empty or mixed restores, or anything else wrong", f"{len(total.problems)}"))
    return "| what | count |\n| --- | --- |\n" + "\n".join(f"| {what} | {count} |" for what, count in rows)


def main() -> int:
    """Run everything; return 1 if something is wrong."""
    args = parse_args()
    processes.become_subreaper()  # this process adopts the savers of killed supervisors
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-chaos-"))
    total = audit.Tally()
    began = time.monotonic()
    load = os.getloadavg()[0]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM, too, leaves nothing behind
    rampage(home, args, total)
    seconds = time.monotonic() - began
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    print(
        f"\n{machine}, {time.strftime('%Y-%m-%d')}; load before {load:.1f}, {seconds:.0f} s\n\n{table(total, seconds)}"
    )
    for problem in total.problems:
        print(f"PROBLEM {problem}", file=sys.stderr)
    if args.json:
        figures = {**vars(total), "seconds": seconds, "machine": machine, "seed": args.seed}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    if total.problems:
        print(f"what was left behind is in {home}", file=sys.stderr)
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
