"""Measures Hugging Face's Trainer and Lightning under ftlaunch, and under torchrun with the frameworks' checkpoints.

    make bench-frameworks
    python scripts/bench_frameworks --rounds 1        # a quick look

Restarts: a job has two ranks on gloo. Ten seconds after the first step rank 1 is killed, and the time is taken to the
first repeated step, and to the first new step. Under torchrun the framework writes its own checkpoint at every step,
and the script resumes from it.
Steps: one rank, with the hooks and without them in turn, each in a process of its own.
All jobs run in one environment. The results are printed as Markdown; --json writes every single figure.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from machine import machine
from peers import Launcher
from tables import as_table, spread
from trial import Failed, Note, Trial, remove_memory

HERE = Path(__file__).parent
NOTES = {"PYTHONPATH": str(HERE.parent / "bench/jobs")}  # where jobs find the module `notes`
JOBS = {"Transformers": HERE / "jobs/hugging_face.py", "Lightning": HERE / "jobs/lightning_ddp.py"}
SIZES = {
    "Transformers": {"short": 32, "long": 256},
    "Lightning": {"short": 256, "long": 1536},
}  # widths: short and long steps
RESTARTS = ("to a step", "to a new step")  # from a rank's death
_CALM = 10.0  # seconds after which everything that warms up beside the training is ready
_PATIENCE = 90.0  # seconds
_WARM_UP = 20  # steps
_ENDLESS = 1_000_000
Figures = dict[str, list[float]]  # of every round


def launchers() -> list[Launcher]:
    """Return the launchers that restart ranks: ftlaunch, ftlaunch with `--preload auto`, and torchrun."""
    size = ("--nproc-per-node", "2", "--max-restarts", "20")
    ours = (sys.executable, "-m", "ftlaunch", *size, "--backoff-first", "1ms", "--job-id", f"bench-{os.getpid()}")
    return [
        Launcher("ftlaunch --preload auto", (*ours, "--preload", "auto"), kept_by="hooks"),
        Launcher("ftlaunch", ours, kept_by="hooks"),
        Launcher("torchrun", (sys.executable, "-m", "torch.distributed.run", *size)),
    ]


def restart(home: Path, launcher: Launcher, framework: str) -> tuple[float, float]:
    """Return the seconds from a rank's death to the next step that ends, and to the first new step. Raises Failed."""
    with Trial(home, launcher, 2) as trial:
        trial.start(str(JOBS[framework]), launcher.kept_by, str(_ENDLESS), str(SIZES[framework]["short"]), env=NOTES)
        trial.wait(lambda: bool(trial.notes("step")), _PATIENCE, "step")
        time.sleep(_CALM)
        (home / "notes.kill").touch()
        trial.wait(lambda: bool(trial.notes("dies")), _PATIENCE, "death")
        died = trial.notes("dies")[0]
        old = {note.pid for note in trial.notes("step") if note.at < died.at}
        trial.wait(lambda: bool(_new_steps(trial, old)), _PATIENCE, "new step")
        trained = next(note for note in trial.notes("step") if note.pid not in old)
        return trained.at - died.at, _new_steps(trial, old)[0].at - died.at


def _new_steps(trial: Trial, old: set[int]) -> list[Note]:
    """Return the steps of restarted ranks that the ranks before, with the pids `old`, had not made."""
    steps = trial.notes("step")
    newest = max(note.step for note in steps if note.pid in old)
    return [note for note in steps if note.pid not in old and note.step > newest]


def step(home: Path, kept_by: str, framework: str, size: str, steps: int) -> float:
    """Return the seconds from one step to the next. Raises Failed."""
    argv = (sys.executable, "-m", "ftlaunch", "--nproc-per-node", "1", "--max-restarts", "0")
    with Trial(home, Launcher("ftlaunch", argv, kept_by=kept_by), 1) as trial:
        trial.start(str(JOBS[framework]), kept_by, str(steps), str(SIZES[framework][size]), env=NOTES)
        trial.ended(_PATIENCE)
        noted = [note.at for note in trial.notes("step")]
        if len(noted) < steps:
            raise Failed(f"{len(noted)} steps of {steps}")
        return (noted[-1] - noted[_WARM_UP]) / (len(noted) - 1 - _WARM_UP)


def ratios(home: Path, framework: str, size: str, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Measure steps with and without the hooks, in turn.

    Returns:
        The seconds of the steps without hooks, and how many times as long the steps with hooks beside them take.
    """
    kinds = ["nothing", *["hooks", "nothing"] * rounds]
    measured = [
        step(home / f"{framework}-{size}-{number}", kind, framework, size, steps) for number, kind in enumerate(kinds)
    ]
    bare = measured[::2]
    hooked = measured[1::2]
    return bare, [2 * mine / sum(beside) for mine, beside in zip(hooked, itertools.pairwise(bare), strict=True)]


def race(home: Path, rounds: int, wrong: list[str]) -> dict[str, Figures]:
    """Measure and print the restarts.

    Args:
        home: a directory.
        rounds: the number of rounds.
        wrong: gets a line for each failure.

    Returns:
        launcher -> framework and moment -> seconds of each restart
    """
    rows = [f"{name}, {moment}" for name, moment in itertools.product(JOBS, RESTARTS)]
    found: dict[str, Figures] = {racer.name: {row: [] for row in rows} for racer in launchers()}
    for number in range(rounds):
        for racer, name in itertools.product(launchers(), JOBS):
            place = home / f"restart-{number}-{name}-{racer.name.replace(' ', '')}"
            try:
                for moment, seconds in zip(RESTARTS, restart(place, racer, name), strict=True):
                    found[racer.name][f"{name}, {moment}"].append(seconds)
            except Failed as failed:
                wrong.append(f"{racer.name}, {name}, round {number + 1}: {failed}")
        print(f"round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    table = [["from a rank's death", *found]]
    table += [[row, *(spread(figures[row], "s", 1) for figures in found.values())] for row in rows]
    print(as_table(table) + "\n", flush=True)
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of restarts; 0: none")
    parser.add_argument("--step-rounds", type=int, default=7, help="of processes whose steps are measured")
    parser.add_argument(
        "--steps", type=int, default=200, help="of each such process; short ones are made 5 times as often"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-frameworks-"))
    wrong: list[str] = []
    print(f"{machine()}; load {os.getloadavg()[0]:.1f} before\n", flush=True)
    costs: dict[str, tuple[list[float], list[float]]] = {}
    try:
        restarts = race(home, args.rounds, wrong) if args.rounds else {}
        for name, size in [(framework, size) for framework in JOBS for size in SIZES[framework]]:
            steps = args.steps * (5 if size == "short" else 1)
            costs[f"{name}, {size}"] = ratios(home, name, size, args.step_rounds, steps)
    finally:
        shutil.rmtree(home)
        remove_memory()
    rows = [["a step", "without the hooks", "with the hooks"]]
    rows += [[name, spread(bare, "ms", 1000), spread(times, "x", 1)] for name, (bare, times) in costs.items()]
    print("\n".join([as_table(rows), "", f"load {os.getloadavg()[0]:.1f} after", *wrong]))
    if args.json:
        out = {"machine": machine(), "restarts": restarts, "steps": costs, "wrong": wrong}
        args.json.write_text(json.dumps(out, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
