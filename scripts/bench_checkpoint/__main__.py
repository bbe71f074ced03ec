"""Measures what checkpoints cost, against torch.save, dcp.save and dcp.async_save, and against plain copies.

    make bench-checkpoints
    python scripts/bench_checkpoint --rounds 3 --sizes 64 --ranks 1      # a quick look

Every figure is the median of at least five rounds, in which everything that is compared is measured in turn. The jobs
run under ftlaunch: the example job (model and batches of scripts/train_gpt.py), models of several sizes on one rank,
and one size on several ranks. The results are printed as Markdown; --json writes all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "bench"))

import first_restore
import report
from machine import machine
from stalls import TURNS

HERE = Path(__file__).parent


def run_job(home: Path, what: str, ranks: int, rounds: int, turns: int) -> dict[str, Any]:
    """Measure one job; return its figures. Raises RuntimeError if the job fails."""
    name = f"bench-{os.getpid()}-{what}-{ranks}"
    place = home / name
    place.mkdir()
    scratch = place / "scratch"
    scratch.mkdir()
    command: list[str | Path] = [
        sys.executable, "-m", "ftlaunch", "--nproc-per-node", str(ranks), "--job-id", name, "--run-dir", place / "run",
        "--memory-interval", str(len(TURNS)), "--storage-interval", "off", "--max-restarts", "0", "--hang-timeout",
        "off", HERE / "job.py", "--what", what, "--home", scratch, "--rounds", str(rounds), "--turns", str(turns),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"cannot measure {what} on {ranks} ranks: exit code {done.returncode}\n{done.stderr}")
    found: dict[str, Any] = json.loads((scratch / "found.json").read_text())
    shutil.rmtree(place)
    return {"what": what, "ranks": ranks, **found}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 256, 1024], help="MiB of state, on one rank")
    parser.add_argument("--only-first", action="store_true", help="measure the first restore of a process alone")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2], help="of the example job")
    parser.add_argument("--grow", type=int, nargs="*", default=[2, 4], help="ranks for 256 MiB")
    parser.add_argument("--dir", type=Path, help="a folder on the storage to measure (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-", dir=args.dir))
    out: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg()}
    runs = []
    plan = [("gpt", ranks, 10 * args.rounds) for ranks in args.ranks]
    plan += [(str(size), 1, args.rounds) for size in args.sizes]
    plan += [("256", ranks, args.rounds) for ranks in args.grow]
    if args.only_first:
        plan = []
    try:
        for what, ranks, turns in plan:
            runs.append(run_job(home, what, ranks, args.rounds, turns))
            print(f"measured {what} on {ranks} ranks, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    finally:
        shutil.rmtree(home)
    first = {size: first_restore.measure(size, args.rounds) for size in args.sizes}
    out |= {"load_after": os.getloadavg(), "runs": runs, "first": first}
    print(report.render(out))
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
