"""A job whose machine is lost with all that was on it goes on from its checkpoint store, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch.checkpoints.stores.stored_checkpoints import StoredCheckpoints
from ftlaunch_contract.checkpoint import layout

STEPS = "30"
KEEPER = "ftlaunch.checkpoints.stores.keeper"
SAVER = "ftlaunch.checkpoints.saver"


class StoredJob:
    """One job on several machines: a run dir each, and a store that they share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = f"file://{root}/bucket"
        self.machines: list[FtJob] = []

    def machine(self) -> FtJob:
        """A machine with an empty disk, on which nothing has started yet."""
        home = self.root / f"machine_{len(self.machines)}"
        home.mkdir()
        job = FtJob(home)
        if self.machines:
            job.job_id = self.machines[0].job_id
            job.memory = self.machines[0].memory
            job.tag = self.machines[0].tag
        self.machines.append(job)
        return job

    def start(self, job: FtJob, *options: str, step_time: str = "0.05", fault: str = "", width: str = "16") -> None:
        words = ("--out", str(job.out), "--steps", STEPS, "--step-time", step_time, "--width", width)
        store = ("--checkpoint-dir", self.address, "--storage-interval", "5")
        job.start(*store, *options, args=words, env={"FAULT": fault} if fault else None)

    def lose(self, job: FtJob) -> None:
        """The machine is gone: every process, its memory, its disk."""
        ranks = job.pids()
        os.kill(job.supervisor.pid, signal.SIGKILL)
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        job.supervisor.wait()
        wait_for(lambda: not carriers(job.tag), "the end of all processes of the machine")
        shutil.rmtree(job.memory)
        shutil.rmtree(job.run_dir)

    def newest(self, job: FtJob) -> int:
        """The newest step that the store has, whole, as a machine with an empty disk would find it."""
        found = StoredCheckpoints(open_store(self.address), self.root / "empty", job.job_id, owner="the test")
        found.claim()
        return found.newest


def helper_pid(job: FtJob, module: str) -> int:
    """The pid of the job's saver or keeper; 0 if there is none."""
    for pid in carriers(job.tag):
        with suppress(OSError):
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
    return 0


def is_reading_stdin(pid: int) -> bool:
    """Whether a process waits for input on descriptor 0, the first argument of its system call."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[1:2] == ["0x0"]
    except PermissionError:
        pytest.skip("this user may not see the system calls of other processes (kernel.yama.ptrace_scope)")


def damage_all(bucket: Path, pattern: str = "*.safetensors") -> int:
    """Change a byte in shards of a folder that stands for a bucket, and return how many there are."""
    shards = list(bucket.rglob(pattern))
    for shard in shards:
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    return len(shards)


def committed(job: FtJob) -> int:
    """The newest step that the job's folder has."""
    return max((step for step, _ in layout.list_iterations(job.run_dir / "checkpoints")), default=-1)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredJob]:
    made = StoredJob(tmp_path)
    yield made
    for job in made.machines:
        job.dispose()


@pytest.mark.long
def test_an_empty_machine_goes_on_where_the_lost_one_had_stored(stored: StoredJob, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = FtJob(tmp_path / "alone")
    alone.start(args=("--out", str(alone.out), "--steps", STEPS))
    assert alone.wait() == 0, alone.stderr
    alone.dispose()
    first = stored.machine()
    stored.start(first, step_time="0.2")
    first.wait_event("checkpoint_stored", count=2)
    stored.lose(first)
    second = stored.machine()
    stored.start(second)
    assert second.wait() == 0, second.stderr
    (opened,) = second.events("store_opened")
    assert opened["newest"] >= 10
    assert opened["brought"] == [opened["newest"]]
    assert f"brought step {opened['newest']} from {stored.address}" in second.stderr
    assert [(one["source"], one["step"]) for one in second.events("resumed")] == [("storage", opened["newest"])]
    assert second.final() == alone.final()
    assert second.events("checkpoint_stored")[-1]["steps"] == [30], "the last step is there before the job ends"
    second.assert_clean()


@pytest.mark.slow
def test_an_empty_machine_whose_store_is_damaged_refuses_to_begin_anew(stored: StoredJob, tmp_path: Path) -> None:
    """Taken out (`damaged_store`): the job says that each step is damaged, and begins with step 1."""
    first = stored.machine()
    stored.start(first, step_time="0.2")
    first.wait_event("checkpoint_stored", count=2)
    stored.lose(first)
    assert damage_all(tmp_path / "bucket")
    second = stored.machine()
    for _ in range(2):  # the second start finds no step that was not refused before
        stored.start(second)
        assert second.wait() == 1, second.stderr
        assert f"cannot resume: all checkpoints in {stored.address} are damaged" in second.stderr
        assert not second.events("resumed")
        assert not list(second.out.glob("losses*"))
    stored.start(second, "--fresh")
    assert second.wait() == 0, second.stderr
    assert stored.newest(second) == int(STEPS)
    second.assert_clean()


@pytest.mark.slow
def test_what_was_saved_on_a_stop_is_in_the_store_when_the_job_ends(stored: StoredJob) -> None:
    first = stored.machine()
    stored.start(first, "--storage-interval", "1000", step_time="0.1")
    first.wait_step(3)
    first.supervisor.send_signal(signal.SIGTERM)
    assert first.wait() == 75, first.stderr
    (saved,) = first.events("checkpoint_committed")
    assert [one["steps"] for one in first.events("checkpoint_stored")] == [[saved["step"]]]
    shutil.rmtree(first.run_dir)
    second = stored.machine()
    stored.start(second)
    assert second.wait() == 0, second.stderr
    assert second.events("resumed")[0]["step"] == saved["step"]


@pytest.mark.slow
def test_a_start_with_nothing_left_to_train_stores_the_last_step(stored: StoredJob) -> None:
    """Taken out: the job ends with 0, and an empty machine would train the last steps again."""
    job = stored.machine()
    stored.start(job, "--storage-interval", "1000")
    keeper = job.wait_event("store_opened") and helper_pid(job, KEEPER)
    os.kill(keeper, signal.SIGSTOP)
    wait_for(lambda: committed(job) == 30, "the commit of the last step in the folder")
    assert not job.events("checkpoint_stored"), "the keeper is stopped"
    os.kill(job.supervisor.pid, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    job.supervisor.wait()
    wait_for(lambda: not carriers(job.tag), "the end of all processes of the job")
    stored.start(job, "--storage-interval", "1000")
    assert job.wait() == 0, job.stderr
    assert [one["steps"] for one in job.events("checkpoint_stored")] == [[30]]
    assert stored.newest(job) == 30
    job.assert_clean()


@pytest.mark.long
def test_a_keeper_that_dies_has_another_one_at_once(stored: StoredJob) -> None:
    """Taken out: nothing is stored any more until the next start, and after 100 s another machine may take over."""
    job = stored.machine()
    stored.start(job, step_time="0.1")
    job.wait_event("checkpoint_stored")
    first = helper_pid(job, KEEPER)
    os.kill(first, signal.SIGKILL)
    died = job.wait_event("keeper_died")
    assert died["status"] == -signal.SIGKILL
    assert job.wait() == 0, job.stderr
    assert job.events("checkpoint_stored")[-1]["steps"][-1] == 30
    assert not job.events("checkpoint_not_stored")
    assert "has died (exit status -9): another one goes on" in job.stderr
    assert stored.newest(job) == 30
    job.assert_clean()


@pytest.mark.slow
def test_keepers_that_die_again_and_again_cost_what_was_asked_and_the_next_step_is_stored(stored: StoredJob) -> None:
    job = stored.machine()
    stored.start(job, step_time="0.2")
    job.wait_event("checkpoint_stored")

    def kill_keeper() -> bool:
        if pid := helper_pid(job, KEEPER):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(job.events("checkpoint_not_stored"))

    wait_for(kill_keeper, "what the job says of a store whose keepers die")
    (failed,) = job.events("checkpoint_not_stored")
    assert failed["error"] == "the process that brings them there has died (exit status -9)"
    assert job.wait() == 0, job.stderr
    assert len(job.events("checkpoint_not_stored")) == 1
    assert stored.newest(job) == 30
    job.assert_clean()


@pytest.mark.long
def test_a_saver_killed_while_the_last_step_goes_to_the_store_does_not_lose_it(stored: StoredJob) -> None:
    """Taken out: the queue of the saver that died is lost with it, and the job ends with 0 and nothing said."""
    job = stored.machine()
    stored.start(job, "--storage-bandwidth", "16KiB")
    objects = stored.root / "bucket"
    wait_for(lambda: any(path.is_file() for path in objects.glob("steps/*/*")), "the beginning of an upload")
    keeper = helper_pid(job, KEEPER)
    os.kill(keeper, signal.SIGSTOP)  # it has listed the folder, and does not know of later steps
    wait_for(lambda: committed(job) == 30, "the commit of the last step in the folder")
    saver = helper_pid(job, SAVER)
    wait_for(lambda: is_reading_stdin(saver), "the saver's answer: it waits for another request")
    os.kill(saver, signal.SIGKILL)
    wait_for(lambda: helper_pid(job, SAVER) not in (0, saver) or job.supervisor.poll() is not None, "another saver")
    os.kill(keeper, signal.SIGCONT)
    assert job.wait() == 0, job.stderr
    assert stored.newest(job) == 30, job.stderr
    job.assert_clean()


@pytest.mark.long
def test_a_machine_that_was_overtaken_stops_and_stores_nothing(stored: StoredJob) -> None:
    """Another machine is there as what it does to the store: two supervisors of one job cannot run on one machine."""
    first = stored.machine()
    stored.start(first, step_time="0.2")
    first.wait_event("checkpoint_stored")
    other = StoredCheckpoints(
        open_store(stored.address), stored.root / "other", job=first.job_id, owner="other (pid 7)"
    )
    other.claim()
    assert first.wait() == 1, first.stderr
    assert "stopped; another machine goes on with the job (exit code 1)" in first.stderr
    (overtaken,) = first.events("store_overtaken")
    assert overtaken["error"] == f"other (pid 7) has taken over the checkpoints in {stored.address}"
    assert f"{overtaken['error']}: the job goes on there, and is stopped here" in first.stderr
    newest = other.newest
    other.claim()
    assert other.newest == newest, "nothing was stored after that"
    assert first.events("checkpoint_committed")[-1]["step"] > newest
    first.assert_clean()


@pytest.mark.slow
def test_memory_of_before_is_not_taken_up_once_the_job_went_on_elsewhere(stored: StoredJob) -> None:
    """Taken out: the machine, come back, goes on from its memory, of a training that was begun anew elsewhere."""
    first = stored.machine()
    stored.start(first, step_time="0.2")
    first.wait_event("checkpoint_stored")
    first.wait_step(8)
    for pid in (first.supervisor.pid, *first.pids()):
        os.kill(pid, signal.SIGKILL)
    first.supervisor.wait()
    wait_for(lambda: not carriers(first.tag), "the end of all processes of the machine")
    assert any(first.memory.glob("slot_*")), "memory has snapshots"
    other = StoredCheckpoints(
        open_store(stored.address), stored.root / "other", job=first.job_id, owner="other (pid 7)"
    )
    other.claim()
    other.put_aside(above=-1)  # the job has begun anew there
    stored.start(first, "--take-over-store")
    assert first.wait() == 1, first.stderr
    forgotten = first.events("store_opened")[-1]["forgotten"]
    assert forgotten >= 5
    assert f"step {forgotten} in the memory of this machine is not used" in first.stderr
    assert "cannot resume: no checkpoint in " in first.stderr, "the one of before is in quarantine"
    assert [one["step"] for one in first.events("resumed")] == [0], "nothing of before was taken up"
    assert not any(first.memory.glob("slot_*"))


@pytest.mark.long
def test_the_folder_keeps_what_fits_and_the_store_keeps_all(stored: StoredJob) -> None:
    """A checkpoint of this job has more than the least limit, so that only the newest one fits."""
    first = stored.machine()
    stored.start(first, "--checkpoint-cache-max-size", "1MB", "--keep", "20", step_time="0.1", width="256")
    assert first.wait() == 0, first.stderr
    deleted = first.events("checkpoint_deleted")
    assert deleted
    assert {event["why"] for event in deleted} == {"cache"}
    in_store = {step for event in first.events("checkpoint_stored") for step in event["steps"]}
    assert in_store == {event["step"] for event in first.events("checkpoint_committed")}
    assert {event["step"] for event in deleted} <= in_store
    left = {step for step, _ in layout.list_iterations(first.run_dir / "checkpoints")}
    assert left == in_store - {event["step"] for event in deleted}
    assert 30 in left
    store = open_store(stored.address)
    other = StoredCheckpoints(store, stored.root / "other", job=first.job_id, owner="other (pid 7)")
    other.claim()
    assert other.digests.keys() == {str(step) for step in in_store}


def test_a_limit_of_the_folder_needs_a_store(tmp_path: Path) -> None:
    job = FtJob(tmp_path)
    job.start("--checkpoint-cache-max-size", "1GB")
    assert job.wait() == 2
    assert "nothing can be deleted for room without a store" in job.stderr
    job.dispose()


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "refusal"),
    [
        ("s4://bucket/a", "it must be a folder, or an address that begins with "),
        ("file://host/a", "it must be file:///PATH, with an absolute path and no host"),
        ("file://me:5ecret@host/a", "a user name or a password has no place in an address"),
        ("file:///a?b=c", "it must end with a path: nothing with `?` or `#`"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_anything_starts(
    place: str, refusal: str, tmp_path: Path
) -> None:
    job = FtJob(tmp_path)
    job.start("--checkpoint-dir", place)
    assert job.wait() == 2
    assert refusal in job.stderr
    assert "5ecret" not in job.stderr
    assert not job.memory.exists()
    assert not list(layout.list_iterations(tmp_path))
    job.dispose()
