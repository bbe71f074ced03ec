"""The main demo: a training run that is killed, frozen and preempted, and ends as if nothing had happened.

    make demo

Trains scripts/train_gpt.py on two ranks under ftlaunch, with a snapshot at every step. Meanwhile a rank is killed
(SIGKILL), a rank is frozen (SIGSTOP), and the supervisor is told to stop (SIGTERM); then the same command is started
again, and finishes. The same job is then trained undisturbed, and the two are compared, bit for bit. Exit code 0 means
that all is equal, and that the kill and the preemption have lost no step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors import safe_open

from ftlaunch.history.journal import read_events
from ftlaunch.system.control_socket import SOCKET, ask
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.protocol import EXIT_SAVED

SCRIPT = Path(__file__).with_name("train_gpt.py")
HANG_TIMEOUT = 3.0  # seconds


def say(text: str) -> None:
    """Print a line of the demo's own, which looks different from the job's lines."""
    print(f"\n=== demo: {text}", flush=True)


class Run:
    """One job: its folders and its command."""

    def __init__(self, name: str, home: Path, steps: int) -> None:
        """Prepare the job. name: its folder in `home`, and a part of the job's id."""
        self.run_dir = home / name / "run"
        self.out = home / name / "out"
        self.steps = steps
        self.command = [
            sys.executable, "-m", "ftlaunch", "--nproc-per-node", "2", "--job-id", f"demo-{name}-{os.getpid()}",
            "--run-dir", str(self.run_dir), "--hang-timeout", f"{HANG_TIMEOUT:g}s", "--startup-timeout", "60s",
            "--teardown-timeout", "60s", "--storage-interval", "200", "--memory-interval", "1",
            str(SCRIPT), "--steps", str(steps), "--out", str(self.out),
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        """Start the supervisor on this terminal."""
        return subprocess.Popen(self.command)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the journal's events of one name."""
        return [event for event in read_events(self.run_dir) if event["event"] == name]

    def status(self) -> dict[str, Any] | None:
        """Return the supervisor's status of the job; None if nobody answers."""
        try:
            memory = Path(self.events("job_started")[-1]["memory_dir"])
            return ask(memory / SOCKET, {"do": "status"})
        except (OSError, ValueError, IndexError):
            return None


def losses_of(out: Path) -> dict[int, str]:
    """Return each step's loss as a hexadecimal float; end the demo if a repeated step had another loss.

    Args:
        out: the folder to which train_gpt.py has written.
    """
    losses: dict[int, str] = {}
    for line in (out / "loss.csv").read_text().splitlines():
        step, _, exact = line.split(",")
        if losses.setdefault(int(step), exact) != exact:
            raise SystemExit(f"step {step} was made twice, with different losses")
    return losses


def wait_for(what: str, ready: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait until `ready()` is truthy, and return the result; end the demo after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := ready():
            return result
        time.sleep(0.02)
    raise SystemExit(f"demo: waited {seconds:.0f} s in vain for {what}")


def pid_at(run: Run, rank: int, step: int) -> int:
    """Wait until all ranks have made `step` steps; return the pid of `rank` at that moment."""

    def reached() -> int | None:
        status = run.status()
        if status is None or status["state"] != "running" or len(status["ranks"]) != 2:
            return None
        return status["ranks"][rank]["pid"] if all(r["step"] >= step for r in status["ranks"]) else None

    return int(wait_for(f"step {step}", reached))


def disturb(run: Run) -> None:
    """Run the job that is killed, frozen and preempted."""
    job = run.start()
    pid = pid_at(run, 1, run.steps // 4)
    say(f"SIGKILL to rank 1 (pid {pid})")
    os.kill(pid, signal.SIGKILL)
    wait_for("the incident", lambda: len(run.events("recovered")) == 1)
    pid = pid_at(run, 0, run.steps // 2)
    say(f"SIGSTOP to rank 0 (pid {pid}): it hangs; the limit is {HANG_TIMEOUT:g} s a step")
    os.kill(pid, signal.SIGSTOP)
    wait_for("the hang to be seen", lambda: len(run.events("recovered")) == 2)
    pid_at(run, 0, run.steps * 3 // 4)
    say(f"SIGTERM to the supervisor (pid {job.pid}), as a scheduler does before it takes the machine away")
    job.send_signal(signal.SIGTERM)
    code = job.wait()
    say(f"the supervisor left with exit code {code}; the same command again")
    if code != EXIT_SAVED:
        raise SystemExit(f"demo: expected exit code {EXIT_SAVED}")
    if run.start().wait() != 0:
        raise SystemExit("demo: the run did not finish")


def compare(disturbed: Run, undisturbed: Run) -> list[tuple[str, bool]]:
    """Return what must be equal, each with whether it is."""
    checks = [
        (
            f"loss history, {disturbed.steps} steps",
            losses_of(disturbed.out) == losses_of(undisturbed.out) and len(losses_of(disturbed.out)) == disturbed.steps,
        ),
        (
            "weights",
            (disturbed.out / "model.safetensors").read_bytes() == (undisturbed.out / "model.safetensors").read_bytes(),
        ),
    ]
    first = last_checkpoint(disturbed.run_dir)
    second = last_checkpoint(undisturbed.run_dir)
    checks.append((f"last checkpoint, {len(first)} tensors (model, optimizer, torch's RNG)", first == second))
    lost = [e["steps_lost"] for e in disturbed.events("resumed") if e["source"] == "memory"]
    # A step is lost if a rank dies within the millisecond or two in which the step before is still being copied.
    costs = f"the kill and the hang cost {' and '.join(map(str, lost))} steps (0, at most 1; resumed from memory)"
    checks.append((costs, len(lost) == 2 and max(lost) <= 1))
    stopped = disturbed.events("job_stopped")[0]["step"]
    resumed = disturbed.events("resumed")[-1]["step"]
    furthest = max(e["step"] for e in disturbed.events("rank_exited") if e["code"] == EXIT_SAVED)
    checks.append(
        (
            f"no step lost to the preemption (left at {furthest}, resumed at {resumed})",
            stopped == resumed == furthest,
        )
    )
    return checks


def last_checkpoint(run_dir: Path) -> dict[str, bytes]:
    """Return the tensors of the newest checkpoint in a run dir, as `tensors_in` does."""
    _, directory = layout.list_iterations(run_dir / "checkpoints")[0]
    return tensors_in(sorted(directory.glob("*.safetensors")))


def tensors_in(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return the tensors of some files as bytes, but for generators that the script never uses."""
    tensors: dict[str, bytes] = {}
    for path in paths:
        with safe_open(path, framework="numpy") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                if not key.startswith(("rng.python", "rng.numpy")):
                    tensors[key] = file.get_tensor(key).tobytes()
    return tensors


def main() -> int:
    """Run the demo; return 0 if everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--home", type=Path, default=Path("out/demo"), help="made anew each time")
    args = parser.parse_args()
    shutil.rmtree(args.home, ignore_errors=True)
    disturbed = Run("disturbed", args.home, args.steps)
    calm = Run("undisturbed", args.home, args.steps)

    say(f"training {args.steps} steps on two ranks; a rank will be killed, one frozen, the job preempted")
    began = time.monotonic()
    disturb(disturbed)
    middle = time.monotonic()
    say("the same job, undisturbed")
    if calm.start().wait() != 0:
        raise SystemExit("demo: the undisturbed run failed")
    end = time.monotonic()

    say("what each incident cost (ftctl report)")
    subprocess.run([sys.executable, "-m", "ftlaunch.cli.ctl", "report", str(disturbed.run_dir)], check=True)
    say(f"disturbed {middle - began:.0f} s, undisturbed {end - middle:.0f} s; compared:")
    checks = compare(disturbed, calm)
    for what, equal in checks:
        print(f"  {'same     ' if equal else 'DIFFERENT'}  {what}")
    (args.home / "result.json").write_text(json.dumps(dict(checks), indent=1) + "\n")
    good = all(equal for _, equal in checks)
    print(f"\n{'The job survived, bit for bit.' if good else 'The runs DIFFER.'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
