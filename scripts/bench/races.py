"""The three runs in which every launcher is measured. Figures are seconds, MiB, and shares of a core.

Each run adds its figures to `found` one after another. If a figure cannot be measured the run raises Failed, and the
figures before it stay.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from machine import cpu_seconds
from peers import Launcher
from trial import Trial

RANKS = 2
_PATIENCE = 8.0  # seconds: several times what each launcher takes when it works
_WATCHED = 0.5  # seconds in which the launcher's processor time is taken

Figures = dict[str, float]


def restarts(home: Path, launcher: Launcher, found: Figures) -> None:
    """Measure the start, the restart after rank 1 was killed, and the end, and whether the job gets to its end."""
    found["small jobs"] = 1
    with Trial(home, launcher, RANKS) as trial:
        trial.start("small.py", env={"BENCH_FAULT": "death" if launcher.restarts else ""})
        found["launch to first line"] = trial.all_noted("line", 0.0, _PATIENCE) - trial.began
        found["launch to ready"] = trial.all_noted("ready", 0.0, _PATIENCE) - trial.began
        if launcher.restarts:
            trial.wait(lambda: bool(trial.notes("dies")), _PATIENCE, "death")
            died = trial.notes("dies")[0].at
            found["deaths"] = 1
            found["death to ready"] = trial.all_noted("ready", died, _PATIENCE) - died
        ended = trial.all_noted("end", 0.0, _PATIENCE)
        last, launcher_ended = trial.ranks_and_launcher_ended(_PATIENCE)
        found["last line to exit"] = launcher_ended - ended
        if launcher.restarts:
            found["last rank's end to exit"] = launcher_ended - last


def hang(home: Path, launcher: Launcher, found: Figures) -> None:
    """Measure the restart after rank 1 began to sleep, where 3 s without a step count as a hang."""
    if not launcher.sees_hangs:
        return
    env = {"BENCH_FAULT": "hang"} | ({"BENCH_CLIENT": "1"} if launcher.kept_by == "file" else {})
    with Trial(home, launcher, RANKS) as trial:
        trial.start("small.py", more=launcher.hang_argv, env=env)
        trial.wait(lambda: bool(trial.notes("hangs")), _PATIENCE, "hang")
        hung = trial.notes("hangs")[0].at
        found["hang (limit 3 s) to ready"] = trial.all_noted("ready", hung, 2 * _PATIENCE) - hung


def training(home: Path, launcher: Launcher, found: Figures) -> None:
    """Measure the example job: a death, the first new step, the launcher's use of the machine, then SIGTERM."""
    if not launcher.restarts:
        return
    found["example jobs"] = 1
    with Trial(home, launcher, RANKS) as trial:
        trial.start("example.py", launcher.kept_by, "100000")
        trial.wait(lambda: bool(trial.notes("dies")), _PATIENCE, "death")
        died = trial.notes("dies")[0]
        # The step that rank 1 did not finish is the first new one.
        _wait_for_step(trial, died.step + 1, died.at)
        first = next(note for note in trial.notes("step", died.at) if note.step > died.step)
        found["death to first new step"] = first.at - died.at
        found["steps lost at the death"] = died.step + 1 - trial.notes("step", died.at)[0].step
        _wait_for_step(trial, first.step + 2, first.at)
        own = trial.own()
        before = sum(cpu_seconds(process.pid) for process in own)
        began = time.monotonic()
        time.sleep(_WATCHED)
        used = sum(cpu_seconds(process.pid) for process in own) - before
        found["launcher, share of a core"] = used / (time.monotonic() - began)
        found["launcher, resident"] = sum(process.memory_info().rss for process in own) / 2**20
        everything = [*own, *(process for process in trial.below() if process not in own)]
        found["job with launcher, memory"] = sum(process.memory_full_info().pss for process in everything) / 2**20
        signalled = trial.send_signal(signal.SIGTERM)
        found["SIGTERM to exit"] = trial.ended(3 * _PATIENCE) - signalled
        found["steps lost at SIGTERM"] = trial.notes("step")[-1].step - _saved(home, launcher)


def _wait_for_step(trial: Trial, step: int, since: float) -> None:
    trial.wait(lambda: any(note.step >= step for note in trial.notes("step", since)), _PATIENCE, f"step {step}")


def _saved(home: Path, launcher: Launcher) -> int:
    """Return the step in storage."""
    if launcher.kept_by == "hooks":
        (tracker,) = home.glob("runs/*/checkpoints/latest_checkpointed_iteration.txt")
        return int(tracker.read_text())
    import torch

    return int(torch.load(home / "state.pt", weights_only=True)["step"])


RACES: dict[str, Callable[[Path, Launcher, Figures], None]] = {"restarts": restarts, "hang": hang, "training": training}
