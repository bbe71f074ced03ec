"""A demo of several machines on one: a rank, an agent, a machine and the head's machine are lost, and no step differs.

    make demo-nodes
    make demo-nodes-apart       # each machine has a disk of its own

As root the machines are namespaces: each has a network, a host name, processes and a /dev/shm of its own, and a lost
machine's link goes down before everything on it is killed. Otherwise the machines are plain processes on 127.0.0.1.
With --apart each machine has a run dir on a disk of its own, as root only; checkpoints go to a folder that stands for a
bucket, and the machines elect the head.
Two machines of two ranks train scripts/train_gpt.py, and two more stand by. Then the same job is trained undisturbed,
and the two are compared, bit for bit. Exit code 0 means that all is equal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from demo import SCRIPT, last_checkpoint, losses_of, say, tensors_in, wait_for
from machines.job import PORT, NodesJob
from machines.namespaces import CannotIsolate, Machines
from machines.plain import PlainMachines

from ftlaunch.checkpoints.stores import index
from ftlaunch.system.ports import free_port
from ftlaunch_contract.protocol import memory_root

NODES = 2
RANKS = 2  # on each machine
MACHINES = 4
RESTARTS = 4  # one for each that is lost


class Run(NodesJob):
    """One job: its folders, its command, and what it has written."""

    def __init__(self, machines: Any, name: str, home: Path, steps: int, port: int, *, apart: bool) -> None:
        """Prepare the job.

        Args:
            machines: `Machines` or `PlainMachines`.
            name: the job's folder in `home`, and a part of the job's id.
            home: the folder of the demo.
            steps: the number of steps.
            port: the port of the head.
            apart: whether each machine has a run dir of its own.
        """
        self.bucket = home.resolve() / name / "bucket" if apart else None
        self.out = home.resolve() / name / "out"
        self.steps = steps
        self.cluster = machines
        command = [
            "--memory-interval", "1", "--storage-interval", "10", "--grace", "3s", "--max-restarts", "4", str(SCRIPT),
            "--steps", str(steps), "--out", str(self.out), "--layers", "2", "--width", "64", "--batch-size", "2",
            "--sample-bytes", "60",
        ]  # fmt: skip
        if self.bucket is not None:
            command = ["--checkpoint-dir", f"file://{self.bucket}", *command]
        super().__init__(
            machines=machines.all,
            home=home.resolve() / name,
            name=f"demo-{name}-{os.getpid()}",
            nodes=NODES,
            command=command,
            ranks=RANKS,
            port=port,
        )

    def begin(self) -> None:
        """Start the agents on this terminal; those that stand by start once the job has its nodes."""
        if self.bucket is not None:
            self.own_disks()
            self.bucket.mkdir()
        for number in range(MACHINES):
            rank = ("--node-rank", str(number)) if number < NODES else ()
            self.start(number, *rank, stdout=None, stderr=None)
            if number >= NODES - 1:
                wait_for("the start", lambda: self.events("attempt_started"))

    def at(self, step: int) -> dict[int, int]:
        """Wait until all ranks have made `step` steps; return each rank's pid."""
        return dict(wait_for(f"step {step}", lambda: self.ranks_at(step)))

    def ended(self, *numbers: int) -> list[int]:
        """Wait for the agents of some machines; return their exit codes."""
        return [self.agents[number].wait(120.0) for number in numbers]


def disturb(run: Run) -> None:
    """Run the job in which a rank, an agent, a machine and the head's machine die."""
    run.begin()
    pid = run.at(run.steps // 5)[1]
    say(f"SIGKILL to rank 1 (pid {pid} on machine 0)")
    run.cluster[0].signal(pid, signal.SIGKILL)
    wait_for("the restart", lambda: len(run.events("recovered")) == 1)

    run.at(run.steps * 2 // 5)
    say("SIGKILL to the agent of machine 1: a machine that stands by takes its place; the same agent is started again")
    run.agents[1].send_signal(signal.SIGKILL)
    wait_for("the restart", lambda: len(run.events("recovered")) == 2)
    run.start(1, stdout=None, stderr=None)

    run.at(run.steps * 7 // 10)
    how = "its link goes down, then everything in it is killed" if run.cluster.apart else "everything of it is killed"
    lost = next(number for number in (2, 3, 1) if run.cluster[number].processes() and works(run, number))
    say(f"machine {lost} is lost: {how}")
    run.cluster[lost].lose()
    wait_for("the restart", lambda: len(run.events("recovered")) == 3)

    run.at(run.steps * 17 // 20)
    say(f"machine 0 is lost, and the head with it: {how}")
    run.cluster[0].lose()
    wait_for("the restart", lambda: len(run.events("resumed")) == 5)
    assert_ended(run, {1, 2, 3} - {lost})


def assert_ended(run: Run, numbers: set[int]) -> None:
    """Wait for the agents of some machines; end the demo if one of them has failed."""
    codes = run.ended(*numbers)
    if set(codes) != {0}:
        raise SystemExit(f"demo: the run did not finish: exit codes {codes}")


def works(run: Run, number: int) -> bool:
    """Return whether the ranks of the second node run on a machine."""
    pids = run.at(0)
    there = run.cluster[number].processes()
    return all(pids[rank] in there for rank in range(RANKS, 2 * RANKS))


def compare(disturbed: Run, undisturbed: Run) -> list[tuple[str, bool]]:
    """Return what must be equal, each with whether it is."""
    weights = "model.safetensors"
    first, second = map(newest_checkpoint, (disturbed, undisturbed))
    lost = [event["steps_lost"] for event in disturbed.events("resumed")[1:]]
    return [
        (
            f"loss history, {disturbed.steps} steps",
            losses_of(disturbed.out) == losses_of(undisturbed.out) and len(losses_of(disturbed.out)) == disturbed.steps,
        ),
        ("weights", (disturbed.out / weights).read_bytes() == (undisturbed.out / weights).read_bytes()),
        (f"last checkpoint, {len(first)} tensors (model, optimizer, torch's RNG)", first == second),
        (
            f"{RESTARTS} restarts; they cost {', '.join('?' if steps is None else str(steps) for steps in lost)} steps",
            len(lost) == RESTARTS and not undisturbed.events("incident"),
        ),
    ]


def newest_checkpoint(run: Run) -> dict[str, bytes]:
    """Return the tensors of the newest checkpoint as bytes, from the run dir or from the folder for a bucket."""
    if run.bucket is None:
        return last_checkpoint(run.run_dir)
    steps = index.parse((run.bucket / index.NAME).read_bytes()).steps
    files = steps[max(steps)].files
    return tensors_in(run.bucket / files[name].object for name in sorted(files) if name.endswith(".safetensors"))


def forget_memory() -> None:
    """Delete the memory of plain processes that were killed; that of other machines has gone with the machines."""
    for left in memory_root(os.getuid()).glob(f"demo-*-{os.getpid()}.*"):
        shutil.rmtree(left)


def machines(*, apart: bool) -> Any:
    """Make machines of namespaces, or, without the rights for that, of plain processes."""
    try:
        made = Machines(MACHINES)
    except CannotIsolate as error:
        if apart:
            raise SystemExit(f"demo: cannot give each machine a disk of its own: {error}") from None
        say(f"the machines are plain processes on 127.0.0.1 ({error})")
        return PlainMachines(MACHINES)
    say(f"{MACHINES} machines, each with a network, a host name, processes and a /dev/shm of its own")
    return made


def main() -> int:
    """Run the demo; return 0 if everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--apart", action="store_true", help="each machine has a disk of its own")
    parser.add_argument("--home", type=Path, default=Path("out/demo-nodes"), help="made anew each time")
    args = parser.parse_args()
    shutil.rmtree(args.home, ignore_errors=True)
    with contextlib.ExitStack() as ends:
        ends.callback(forget_memory)
        args.home.mkdir(parents=True)
        if args.apart:
            os.environ["FTLAUNCH_TOKEN"] = secrets.token_hex(16)
        cluster = ends.enter_context(machines(apart=args.apart))
        port = PORT if cluster.apart else free_port("127.0.0.1")
        disturbed, calm = (
            Run(cluster, name, args.home, args.steps, port, apart=args.apart) for name in ("disturbed", "undisturbed")
        )
        say(f"training {args.steps} steps on {NODES} machines of {RANKS} ranks, and two machines that stand by")
        began = time.monotonic()
        disturb(disturbed)
        middle = time.monotonic()
        if args.apart:
            disturbed.keep_journal()
    with contextlib.ExitStack() as ends:
        calm.cluster = ends.enter_context(machines(apart=args.apart))
        calm.machines = calm.cluster.all
        say("the same job, undisturbed")
        calm.begin()
        if set(codes := calm.ended(*calm.agents)) != {0}:
            raise SystemExit(f"demo: the undisturbed run failed: exit codes {codes}")
        end = time.monotonic()
        if args.apart:
            calm.keep_journal()

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
