"""Faults of a bucket's server and of its answers: no torn step, no lost commit, and a sentence for what fails."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import checkpoints
from tests.support.buckets import (
    BucketServer,
    FaultyProxy,
    LoseAnswer,
    Refusal,
    Request,
    ResetConnection,
    environment,
    needs_server,
)
from tests.support.checkpoints import assert_whole, commit

from ftlaunch.checkpoints.stores import heartbeat, index
from ftlaunch.checkpoints.stores.fetching import fetch_object
from ftlaunch.checkpoints.stores.keeper import Keeper
from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch.checkpoints.stores.stored_catalog import StoreCatalog
from ftlaunch.checkpoints.stores.stored_checkpoints import OvertakenError, StoredCheckpoints
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.progress import ignore

pytestmark = needs_server

SIZE = 12 << 20  # bytes of each shard: two parts


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that fails is tried again for two seconds."""
    from ftlaunch.checkpoints.stores import bucket

    monkeypatch.setattr(bucket, "RETRY_SECONDS", 2.0)
    monkeypatch.setattr(bucket, "SILENT_SECONDS", 1.0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "first"


@pytest.fixture
def stored(proxy: FaultyProxy, address: str, home: Path) -> StoredCheckpoints:
    """The claimed store of a machine that has stored step 10."""
    made = stored_of(address, home)
    made.claim()
    commit(home, 10)
    made.publish(keep=5)
    return made


def stored_of(address: str, home: Path, spent: Callable[[int], None] = ignore) -> StoredCheckpoints:
    return StoredCheckpoints(open_store(address), home / "checkpoints", job="net", owner=home.name, spent=spent)


def assert_stored(address: str, *steps: int) -> None:
    """The steps are there, every byte of them, and nothing else."""
    store = open_store(address)
    catalog = StoreCatalog(store)
    assert sorted(catalog.index.steps) == list(steps)
    assert all(entry.verified for entry in catalog.verify_steps(None, lambda *_: _Unwatched()))
    assert set(store.names(index.OBJECTS)) == catalog.index.objects


class _Unwatched:
    def __enter__(self) -> Callable[[int], None]:
        return ignore

    def __exit__(self, *error: object) -> None:
        pass


def is_index(request: Request) -> bool:
    return request.kind == "PUT" and request.path.endswith(f"/{index.NAME}")


# --- the server dies ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_server_that_is_killed_in_mid_upload_costs_nothing(
    proxy: FaultyProxy, server: BucketServer, address: str, home: Path
) -> None:
    killed: list[int] = []

    def kill_once(count: int) -> None:
        if not killed:
            killed.append(count)
            server.kill()
            server.start()

    stored = stored_of(address, home, spent=kill_once)
    stored.claim()
    commit(home, 10, size=SIZE)
    publish(stored)
    assert killed
    assert_stored(address, 10)


def publish(stored: StoredCheckpoints) -> None:
    """Publish, as a job does: what fails is tried again with the next checkpoint."""
    for _ in range(3):
        try:
            stored.publish(keep=5)
        except OSError as error:
            print(error.strerror)
        else:
            return
    pytest.fail("three tries have failed")


@pytest.mark.long
@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_server_that_is_killed_in_mid_commit_costs_nothing(
    is_carried_out: bool, stored: StoredCheckpoints, proxy: FaultyProxy, server: BucketServer, address: str, home: Path
) -> None:
    """The commit was carried out and its answer is lost, or the request has never arrived."""
    lock = threading.Lock()

    def fault(request: Request) -> Refusal | None:
        with lock:
            if not is_index(request) or proxy.fired:
                return None
            if is_carried_out:
                raise LoseAnswer
            server.kill()
            server.start()
            raise ResetConnection

    proxy.fault = fault
    commit(home, 20)
    stored.publish(keep=5)  # Taken out (no other try): this fails, and the last step of a job is not stored.
    assert proxy.fired == 1
    assert_stored(address, 10, 20)
    commit(home, 30)
    stored.publish(keep=5)
    assert_stored(address, 10, 20, 30)


# --- what lies there is damaged -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "another"])
def test_a_damaged_object_is_refused_and_the_older_step_taken(
    damage: str, stored: StoredCheckpoints, address: str, home: Path, tmp_path: Path
) -> None:
    commit(home, 20)
    stored.publish(keep=5)
    store = open_store(address)
    steps = StoreCatalog(store).index.steps
    victim = steps[20].files[checkpoints.MODEL].object
    copy = tmp_path / "copy"
    fetch_object(store, victim if damage != "another" else steps[10].files[checkpoints.MODEL].object, copy, ignore)
    content = bytearray(copy.read_bytes())
    content[-1] ^= damage == "changed"
    copy.write_bytes(content[:-1] if damage == "cut" else content)
    if damage == "gone":
        store.delete(victim)
    else:
        store.upload(copy, victim, ignore)
    catalog = StoreCatalog(store)
    assert [entry.verified for entry in catalog.verify_steps(None, lambda *_: _Unwatched())] == [False, True]
    second = stored_of(address, tmp_path / "second")
    second.claim()
    assert [refused.step for refused in second.bring(newer_than=-1)] == [20]
    assert [step for step, _ in layout.list_iterations(tmp_path / "second/checkpoints")] == [10]
    assert_whole(layout.iteration_dir(tmp_path / "second/checkpoints", 10))


# --- several processes --------------------------------------------------------------------------------------


def test_of_claims_at_the_same_moment_one_wins(proxy: FaultyProxy, address: str, tmp_path: Path) -> None:
    for turn in range(6):
        machines = [stored_of(address, tmp_path / f"{turn}-{number}") for number in range(4)]
        begin = threading.Barrier(len(machines))
        ends: list[object] = [None] * len(machines)

        def claim(number: int, machine: StoredCheckpoints, begin: threading.Barrier, ends: list[object]) -> None:
            begin.wait()
            try:
                machine.claim()
            except OvertakenError as error:
                ends[number] = error

        threads = [
            threading.Thread(target=claim, args=(number, one, begin, ends)) for number, one in enumerate(machines)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Who claims behind the winner overtakes it; whoever was overtaken finds that out at its next commit.
        last = StoreCatalog(open_store(address)).index
        winner = next(machine for machine in machines if machine.token == last.claim)
        assert ends[machines.index(winner)] is None
        winner.put_aside(above=-1)
        for machine in machines:
            if machine is not winner and ends[machines.index(machine)] is None:
                commit(tmp_path / f"{turn}-{machines.index(machine)}", 10)
                with pytest.raises(OvertakenError):
                    machine.publish(keep=5)
    machines[0].claim()
    assert set(open_store(address).names(index.OBJECTS)) == set()


# --- what the server says -----------------------------------------------------------------------------------


def test_a_server_that_never_answers_is_said(
    short_retries: None, monkeypatch: pytest.MonkeyPatch, address: str, home: Path
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        for name, value in environment(f"http://127.0.0.1:{silent.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        began = time.monotonic()
        with pytest.raises(OSError, match="no answer; check the network"):
            stored_of(address, home).claim()
    assert time.monotonic() - began < 30.0


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (Refusal(503), "it answers 503 SlowDown when asked to write; try again later"),
        (Refusal(400, "ExpiredToken"), "the credentials are wrong or have expired"),
        (Refusal(403, "AccessDenied"), "the credentials do not allow to write objects in the bucket"),
    ],
)
def test_a_refusal_for_long_is_said_and_the_next_checkpoint_brings_all(
    refusal: Refusal, said: str, short_retries: None, proxy: FaultyProxy, address: str, home: Path
) -> None:
    stored = stored_of(address, home)
    stored.claim()
    commit(home, 10)
    stored.publish(keep=5)
    proxy.fault = lambda request: refusal if request.method == "PUT" else None
    commit(home, 20)
    with pytest.raises(OSError) as failed:
        stored.publish(keep=5)
    assert said in str(failed.value.strerror)
    assert proxy.fired
    proxy.fault = lambda request: None
    commit(home, 30)
    stored.publish(keep=5)
    catalog = StoreCatalog(open_store(address))
    assert sorted(catalog.index.steps) == [10, 20, 30]
    again = stored_of(address, home)
    again.claim()
    assert_stored(address, 10, 20, 30)


@pytest.mark.long
def test_503_for_a_while_is_not_noticed(
    stored: StoredCheckpoints, proxy: FaultyProxy, address: str, home: Path
) -> None:
    end = time.monotonic() + 4.0
    proxy.fault = lambda request: Refusal(503) if time.monotonic() < end else None
    commit(home, 20, size=SIZE)
    stored.publish(keep=5)
    assert proxy.fired >= 3
    assert_stored(address, 10, 20)


def test_without_permission_to_delete_nothing_is_begun(
    stored: StoredCheckpoints, proxy: FaultyProxy, address: str, home: Path, tmp_path: Path
) -> None:
    """And where the permission is taken away in mid-run, steps are committed all the same, and all is kept."""
    proxy.fault = lambda request: Refusal(403, "AccessDenied") if request.kind == "DELETE" else None
    commit(home, 20)
    with pytest.raises(OSError, match="do not allow to delete objects in the bucket") as failed:
        stored.publish(keep=1)
        shrink(stored, home)
    assert "the job must read, write, list and delete there" in str(failed.value.strerror)
    assert 20 in StoreCatalog(open_store(address)).index.steps
    with pytest.raises(OSError, match="do not allow to delete objects in the bucket"):
        stored_of(address, tmp_path / "second").claim()
    assert proxy.fired
    proxy.fault = lambda request: None
    for _ in range(2):  # probes go with the term after theirs
        stored_of(address, home).claim()
    store = open_store(address)
    assert set(store.names(index.OBJECTS)) == StoreCatalog(store).index.objects, "the next start deletes what was left"


def shrink(stored: StoredCheckpoints, home: Path) -> None:
    """Let step 10 go in the directory, and then in the store."""
    layout.quarantine(home / "checkpoints", layout.iteration_dir(home / "checkpoints", 10), "by the test")
    stored.publish(keep=1)


# --- bandwidth ----------------------------------------------------------------------------------------------


@pytest.fixture
def keeper(proxy: FaultyProxy, address: str, home: Path) -> Iterator[tuple[Keeper, threading.Event]]:
    """An open keeper, and what makes it hurry."""
    hurried = threading.Event()
    made = Keeper(hurried.wait, say=lambda answer: True)
    opening: dict[str, Any] = {"do": "open", "store": address, "directory": str(home / "checkpoints"), "job": "net"}
    answer = made.carry_out(
        {
            **opening,
            "is_checked": True,
            "memory": str(home / "memory"),
            "owner": "me",
            "newer_than": -1,
            "life": "",
            "adopted": "",
            "meeting": None,
            "take_over": False,
        }
    )
    assert "error" not in answer
    yield made, hurried
    made.leave()


def test_an_upload_keeps_to_the_jobs_bandwidth_and_a_hurry_lifts_one(
    keeper: tuple[Keeper, threading.Event], address: str, home: Path
) -> None:
    """Tried: with one limit for all uploads, the second is as fast as the hurried one."""
    made, hurried = keeper
    upload = {"do": "publish", "keep": 5, "keep_every": None, "bandwidth": 8 << 20}
    commit(home, 10, ranks=1, size=SIZE)
    hurried.set()
    fast = made.carry_out(upload)
    hurried.clear()
    commit(home, 20, ranks=1, size=SIZE)
    slow = made.carry_out(upload)
    assert (fast["steps"], slow["steps"]) == ((10,), (20,))
    assert slow["seconds"] > 2 * SIZE / (8 << 20) - 0.5
    assert fast["seconds"] < slow["seconds"]
    made.leave()
    beat = open_store(address).read(heartbeat.NAME)
    assert beat is not None
    last = heartbeat.parse(beat.data)
    assert last is not None
    assert last.ended


# --- what is asked for --------------------------------------------------------------------------------------


def test_the_guide_says_how_many_requests_are_made(
    proxy: FaultyProxy, address: str, home: Path, tmp_path: Path
) -> None:
    """Of two ranks: four shards, common.json and metadata.json. Shards of more than 8 MiB go in parts."""
    made = stored_of(address, home)

    def count(what: Callable[[], object]) -> dict[str, int]:
        proxy.kinds.clear()
        what()
        return dict(proxy.kinds)

    assert count(made.claim) == {"GET": 1, "PUT": 5, "DELETE": 1, "LIST": 1}
    commit(home, 10)
    assert count(lambda: made.publish(keep=1)) == {"PUT": 6 + 1}
    commit(home, 20, size=SIZE)
    parts = {"BEGIN": 4, "PART": 8, "COMPLETE": 4}
    assert count(lambda: made.publish(keep=2)) == {"PUT": 2 + 1, **parts}
    layout.quarantine(home / "checkpoints", layout.iteration_dir(home / "checkpoints", 10), "by the test")
    assert count(lambda: made.publish(keep=1)) == {"PUT": 1, "DELETE": 6}
    second = stored_of(address, tmp_path / "second")
    second.claim()
    assert count(lambda: second.bring(newer_than=-1)) == {"GET": 6}
    assert count(lambda: StoreCatalog(open_store(address)).list_entries()) == {"GET": 1}
