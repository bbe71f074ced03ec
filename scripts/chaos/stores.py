"""Kills processes around a checkpoint store at random moments, and checks that nothing is torn and no commit is lost.

    make chaos-stores                                  # 100 kills over a real S3 server on this machine
    python scripts/chaos/stores.py --kills 20 --seed 7

Jobs of two ranks keep their checkpoints in one bucket. A rank, the saver, the keeper, the supervisor, the S3 server
(which is started again with what it had), or everything on the machine (whose disk and memory are then gone) is killed
at a random moment. After each kill of a keeper, and at the end of each job, every object that the index names is read
and compared with its checksum; the newest step that the job has called stored must be there; a step that is made twice
must have the same losses; the job must end in the state of an undisturbed run; and nothing may lie in the bucket but
what retention keeps. Exits with 1 if anything is not as it must be, and then keeps what the job in question has left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.buckets import BUCKET, BucketServer, bucket_server, environment
from tests.support.harness import FtJob
from tests.support.leftovers import carriers, set_mark
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores import index
from ftlaunch.checkpoints.stores.store import CheckpointStore, open_store
from ftlaunch.checkpoints.stores.stored_catalog import StoreCatalog, StoreRefused
from ftlaunch.checkpoints.stores.stored_checkpoints import StoredCheckpoints
from ftlaunch.cli.terminal.progress import progress
from ftlaunch.system import processes
from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import retention
from ftlaunch_contract.checkpoint.retention import Candidate

STEPS = 300
STEP_SECONDS = 0.04
INTERVAL = 8
KEEP = 2
WIDTHS = (16, 1600)  # the second has shards of more than one part
KILLS_A_JOB = 50  # after which a job may run to its end
PAUSE_SECONDS = (0.1, 2.5)  # between two kills
SERVER_SECONDS = (0.0, 2.0)  # in which the server is down
_END_SECONDS = 600.0  # in which a job that nobody disturbs any more ends
_NO_KEEPER = "the process that asks it has died"  # what a start says that is given up
KEEPER = "ftlaunch.checkpoints.stores.keeper"
SAVER = "ftlaunch.checkpoints.saver"
TARGETS = ("rank", "saver", "keeper", "supervisor", "server", "machine")


@dataclass
class Tally:
    """What was done and found."""

    kills: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    starts: int = 0
    refused: int = 0
    """starts that were given up because keepers were killed, and were made again"""
    stored: int = 0
    """steps that jobs have called stored"""
    not_stored: int = 0
    """times that a job has said that steps could not be stored"""
    brought: int = 0
    """steps that were brought to an empty machine"""
    verified: int = 0
    """steps of the store of which every byte was compared"""
    torn: int = 0
    lost: int = 0
    left: int = 0
    problems: list[str] = field(default_factory=list)


class StoreChaos:
    """One job, and what is killed of it."""

    def __init__(self, home: Path, number: int, server: BucketServer, dice: random.Random, tally: Tally) -> None:
        """Start nothing yet."""
        home.mkdir()
        self._job = FtJob(home)
        self._number = number
        self._width = WIDTHS[number % len(WIDTHS)]
        self._address = f"s3://{BUCKET}/chaos/{self._job.job_id}"
        self._server = server
        self._dice = dice
        self._tally = tally
        self._newest_stored = -1
        self._seen = 0  # events of the journal that were counted
        self._has_lost_machine = False

    def run(self, kills: int, ends: dict[int, list[str]]) -> None:
        """Kill so often, let the job end, and judge it. ends: width -> the state that an undisturbed run ends in."""
        if self._width not in ends:
            ends[self._width] = self._run_undisturbed()
        self._tally.jobs += 1
        self._start()
        with progress(f"job {self._number}", kills, "kills") as advance:
            done = 0
            while done < kills and self._goes_on():
                time.sleep(self._dice.uniform(*PAUSE_SECONDS))  # the moment of the kill is the point
                target = self._dice.choice(TARGETS)
                if self._kill(target):
                    self._tally.kills[target] += 1
                    done += 1
                    advance(1)
        self._finish(ends[self._width])

    def _goes_on(self) -> bool:
        """Return whether the job runs. Starts it again where three keepers in a row were killed before it had begun."""
        if self._job.supervisor.poll() == protocol.EXIT_USAGE and _NO_KEEPER in self._job.stderr:
            self._tally.refused += 1
            self._start()
        return self._job.supervisor.poll() is None

    def _run_undisturbed(self) -> list[str]:
        calm = FtJob(Path(tempfile.mkdtemp(dir=self._job.home.parent)))
        calm.start(args=self._words(calm, "0"))
        assert calm.wait(_END_SECONDS) == 0, calm.stderr
        calm.dispose()
        return calm.final()

    def _words(self, job: FtJob, step_time: str) -> tuple[str, ...]:
        words = ("--out", str(job.out), "--steps", str(STEPS), "--step-time", step_time)
        return (*words, "--width", str(self._width))

    def _start(self) -> None:
        self._tally.starts += 1
        # Else an empty machine would wait for a sign of life of the lost one, at each start until it has the store.
        options = ("--take-over-store",) if self._has_lost_machine else ()
        self._job.start(
            "--checkpoint-dir", self._address, "--storage-interval", str(INTERVAL), "--keep", str(KEEP),
            "--max-restarts", "1000", "--backoff-first", "0.1s", "--backoff-max", "0.2s", *options,
            args=self._words(self._job, str(STEP_SECONDS)), env=environment(self._endpoint),
        )  # fmt: skip

    @property
    def _endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    # --- killing ----------------------------------------------------------------------------------------------

    def _kill(self, target: str) -> bool:
        """Kill something. Return whether there was such a process."""
        if target == "server":
            self._server.kill()
            time.sleep(self._dice.uniform(*SERVER_SECONDS))  # how long it is down
            self._server.start()
            return True
        if target == "machine":
            self._lose_machine()
            return True
        if target == "supervisor":
            self._kill_pids([self._job.supervisor.pid])
            self._job.supervisor.wait()
            wait_for(lambda: not carriers(self._job.tag), "the end of the processes of the job")
            self._audit()
            self._start()
            return True
        pids = self._ranks() if target == "rank" else self._helpers(KEEPER if target == "keeper" else SAVER)
        killed = self._kill_pids([self._dice.choice(pids)]) if pids else False
        if killed and target == "keeper":
            self._audit()
        return killed

    def _lose_machine(self) -> None:
        self._kill_pids(carriers(self._job.tag))
        self._job.supervisor.wait()
        wait_for(lambda: not carriers(self._job.tag), "the end of the processes of the job")
        self._count_events()
        self._audit()
        shutil.rmtree(self._job.memory, ignore_errors=True)
        shutil.rmtree(self._job.run_dir, ignore_errors=True)
        self._seen = 0
        self._has_lost_machine = True
        self._start()

    def _kill_pids(self, pids: list[int]) -> bool:
        killed = False
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed = True
        return killed

    def _ranks(self) -> list[int]:
        attempts = self._job.events("attempt_started")
        return [pid for pid in attempts[-1]["pids"] if Path(f"/proc/{pid}").exists()] if attempts else []

    def _helpers(self, module: str) -> list[int]:
        found = []
        for pid in carriers(self._job.tag):
            with suppress(OSError):
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    # --- judging ----------------------------------------------------------------------------------------------

    def _count_events(self) -> None:
        """Count what the journal says anew."""
        stored = self._job.events("checkpoint_stored")
        missed = self._job.events("checkpoint_not_stored")
        opened = self._job.events("store_opened")
        new = [event for event in (*stored, *missed, *opened) if event["mono"] > self._seen]
        self._seen = max((event["mono"] for event in new), default=self._seen)
        for event in new:
            if event["event"] == "checkpoint_stored":
                self._tally.stored += len(event["steps"])
                self._newest_stored = max(self._newest_stored, *event["steps"])
            elif event["event"] == "checkpoint_not_stored":
                self._tally.not_stored += 1
            else:
                self._tally.brought += len(event["brought"])

    def _open(self) -> CheckpointStore:
        os.environ.update(environment(self._endpoint))
        return open_store(self._address)

    def _audit(self) -> None:
        """Read all that the index names. A job that runs may let a step go meanwhile, and then the index is another."""
        self._count_events()
        while True:
            store = self._open()
            try:
                catalog = StoreCatalog(store)
            except StoreRefused:
                if self._newest_stored >= 0:
                    self._problem("lost", f"no index, and step {self._newest_stored} was stored")
                return
            if not catalog.index.steps:
                return
            entries = list(catalog.verify_steps(None, progress))
            now = StoreCatalog(store)
            if now.index == catalog.index:
                break
        self._tally.verified += len(entries)
        for entry in entries:
            if not entry.verified:
                self._problem("torn", f"step {entry.step}: {entry.problem}")
        if max(now.index.steps) < self._newest_stored:
            self._problem("lost", f"step {self._newest_stored} was stored, and the index has {sorted(now.index.steps)}")

    def _finish(self, end: list[str]) -> None:
        """Let the job end, and judge what it has left."""
        job = self._job
        self._goes_on()
        if code := job.wait(_END_SECONDS):
            self._tally.problems.append(f"{job.home}: exit code {code}\n{job.stderr[-2000:]}")
            return
        self._audit()
        if job.final() != end:
            self._tally.problems.append(f"{job.home}: the end is not that of an undisturbed run")
        for rank in (0, 1):
            job.losses(rank)
        store = self._open()
        steps = StoreCatalog(store).index.steps
        if max(steps, default=-1) != STEPS:
            self._problem("lost", f"the last step is not in the store, which has {sorted(steps)}")
        self._clean_up(store)
        job.assert_clean()

    def _clean_up(self, store: CheckpointStore) -> None:
        """Claim the store once more, as a start would, and see that nothing is left but what retention keeps."""
        audit = StoredCheckpoints(store, self._job.run_dir / "checkpoints", self._job.job_id, "the audit")
        audit.claim()
        audit.publish(KEEP)
        found = StoreCatalog(store).index
        candidates = [
            Candidate(step, stored.health == "normal", stored.needs)
            for step, stored in sorted(found.steps.items(), reverse=True)
        ]
        surplus = retention.not_kept(candidates, keep=KEEP)
        strays = set(store.names(index.OBJECTS)) - found.objects
        for what in (*surplus, *sorted(strays)):
            self._problem("left", f"{what} is left")

    def _problem(self, kind: str, sentence: str) -> None:
        setattr(self._tally, kind, getattr(self._tally, kind) + 1)
        self._tally.problems.append(f"{self._job.home}: {sentence}")

    def dispose(self) -> None:
        """End the processes of the job, and delete its memory."""
        self._job.dispose()


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how many SIGKILLs (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed when (default 1)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def rampage(home: Path, kills: int, dice: random.Random, tally: Tally) -> None:
    """Run job after job until enough was killed, or something is wrong."""
    ends: dict[int, list[str]] = {}
    with bucket_server(home / "server") as server:
        while tally.kills.total() < kills and not tally.problems:
            chaos = StoreChaos(home / f"job_{tally.jobs}", tally.jobs, server, dice, tally)
            try:
                chaos.run(min(kills - tally.kills.total(), KILLS_A_JOB), ends)
            finally:
                chaos.dispose()
            server.reclaim()  # else it runs full of deleted objects, and refuses to write
            print(
                f"{tally.kills.total()} kills, {tally.stored} steps stored, {len(tally.problems)} problems", flush=True
            )


def main() -> int:
    """Run everything; return 1 if something is wrong."""
    args = parse_args()
    processes.become_subreaper()  # this process adopts what killed supervisors leave
    set_mark()
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-chaos-stores-"))
    tally = Tally()
    began = time.monotonic()
    rampage(home, args.kills, random.Random(args.seed), tally)
    seconds = time.monotonic() - began
    kills = ", ".join(f"{target} {count}" for target, count in tally.kills.most_common())
    print(
        f"{tally.kills.total()} SIGKILLs ({kills}) over {tally.jobs} jobs and {tally.starts} starts"
        f" ({tally.refused} given up) in {seconds:.0f} s:"
        f" {tally.stored} steps stored, {tally.not_stored} times not stored, {tally.brought} brought to empty machines,"
        f" {tally.verified} verified; {tally.torn} torn, {tally.lost} lost commits, {tally.left} left behind,"
        f" {len(tally.problems)} problems"
    )
    for problem in tally.problems:
        print(f"PROBLEM {problem}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps({**vars(tally), "seconds": seconds, "seed": args.seed}, indent=1) + "\n")
    if tally.problems:
        print(f"what was left behind is in {home}", file=sys.stderr)
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
