"""The heartbeat of a store's owner: who lives is not overtaken, who left or is lost is, whatever the clocks say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.stores import Machine
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores import heartbeat
from ftlaunch.checkpoints.stores.heartbeat import Heartbeat, HeartbeatThread, LivingOwnerError, OwnerWatch

PERIOD = 0.02
SILENT = 0.4
NOWHERE = b'{"version": 1, "claim": "c", "owner": "o", "since": "s", "number": 1, "meeting": ["10.0.0.1"]}'


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Machine]:
    return lambda name: Machine(tmp_path, name)


def beating(
    machine: Machine, overtaken: Callable[[str], None] = lambda _: None, meeting: tuple[str, int] | None = None
) -> HeartbeatThread:
    thread = HeartbeatThread(
        machine.store,
        machine.stored.token,
        owner="first pid 7",
        overtaken=overtaken,
        meeting=meeting,
        period_seconds=PERIOD,
    )
    thread.start()
    return thread


def wait(machine: Machine) -> list[str]:
    """Wait for the owner of the store. Returns whom a wait was for."""
    waited: list[str] = []
    heartbeat.wait_until_gone(
        machine.store,
        machine.index,
        pause=threading.Event().wait,
        begin_waiting=lambda owner, _: waited.append(owner),
        silent_seconds=SILENT,
    )
    return waited


def read(machine: Machine) -> Heartbeat | None:
    found = machine.store.read(heartbeat.NAME)
    return None if found is None else heartbeat.parse(found.data)


def test_an_owner_that_lives_is_named(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    thread = beating(first)
    with pytest.raises(LivingOwnerError, match=r"job net runs on first pid 7 since \d{4}-.* UTC"):
        wait(machine("second"))
    thread.end()
    assert wait(machine("second")) == [], "it has said that it left"


def test_the_head_of_a_job_is_found_by_its_store(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    assert heartbeat.find_meeting(first.store, "net") is None, "nobody keeps the store"
    first.start()
    thread = beating(first, meeting=("10.0.0.1", 29400))
    assert heartbeat.find_meeting(first.store, "net") == ("10.0.0.1", 29400)
    assert heartbeat.find_meeting(first.store, "another job") is None
    machine("second").start()
    assert heartbeat.find_meeting(first.store, "net") is None, "the next head has not said yet where it listens"
    thread.end()


def test_a_head_that_has_left_is_not_looked_for(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    beating(first, meeting=("10.0.0.1", 29400)).end()
    assert heartbeat.find_meeting(first.store, "net") is None


def test_an_owner_that_is_lost_is_waited_for(machine: Callable[[str], Machine]) -> None:
    """The process is gone without a word: here, a heartbeat that nobody replaces, with a clock years ahead."""
    first = machine("first")
    first.start()
    beat = Heartbeat(first.stored.token, "first pid 7", "2099-01-01 00:00:00 UTC", number=3)
    first.store.replace(heartbeat.NAME, heartbeat.dump(beat), None)
    assert wait(machine("second")) == ["first pid 7"]


def test_an_owner_that_has_just_claimed_is_not_taken_for_its_predecessor(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    beating(first).end()
    second = machine("second")
    second.start()  # its first heartbeat is to come
    ended = read(first)
    assert ended is not None
    assert ended.ended
    assert wait(machine("third")) == ["second pid 7"]


def test_one_that_was_overtaken_hears_of_it(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    heard: list[str] = []
    beating(first, heard.append)
    second = machine("second")
    second.start()
    thread = HeartbeatThread(
        second.store, second.stored.token, owner="second pid 7", overtaken=heard.append, period_seconds=PERIOD
    )
    thread.start()
    wait_for(lambda: heard, "the first to hear of the second")
    before = read(second)
    wait_for(lambda: read(second) != before, "the second's next heartbeat")
    thread.end()
    assert heard == ["second pid 7"]


def test_an_object_that_was_removed_is_written_again(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.start()
    heard: list[str] = []
    thread = beating(first, heard.append)
    first.store.delete(heartbeat.NAME)
    wait_for(lambda: read(first), "another heartbeat")
    thread.end()
    assert not heard


def test_a_store_that_does_not_answer_ends_no_heartbeat(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine("first")
    first.start()
    plain = first.store.replace
    failed: list[str] = []

    def replace_object(name: str, data: bytes, version: str | None) -> str:
        if len(failed) < 3:
            failed.append(name)
            raise OSError(5, "no answer")
        return plain(name, data, version)

    thread = beating(first)
    before = read(first)
    monkeypatch.setattr(first.store, "replace", replace_object)
    wait_for(lambda: len(failed) == 3 and read(first) != before, "a heartbeat behind the failures")
    thread.end()
    last = read(first)
    assert last is not None
    assert last.ended


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"version": 2}', b'{"version": 1, "claim": 3}', b"\xff", b"[" * 100_000, NOWHERE]
)
def test_what_is_no_heartbeat_is_none(data: bytes) -> None:
    assert heartbeat.parse(data) is None


def test_a_heartbeat_is_what_it_was() -> None:
    beat = Heartbeat("c", "o", "s", meeting=("10.0.0.1", 29400), number=7, ended=True)
    assert heartbeat.parse(heartbeat.dump(beat)) == beat
    assert heartbeat.parse(heartbeat.dump(replace(beat, ended=False))) != beat


def test_the_wait_begins_with_the_first_look() -> None:
    watch = OwnerWatch("c", silent_seconds=100.0)
    beat = Heartbeat("c", "o", "s")
    watch.record("1", beat, now=1e9)
    watch.record("1", beat, now=1e9 + 99.0)
    assert (watch.is_alive, watch.is_gone) == (False, False)
    watch.record("1", beat, now=1e9 + 100.0)
    assert (watch.is_alive, watch.is_gone) == (False, True)


@pytest.mark.parametrize("later", [("2", Heartbeat("c", "o", "s", 2)), (None, None)])
def test_any_change_is_a_sign_of_life(later: tuple[str | None, Heartbeat | None]) -> None:
    watch = OwnerWatch("c")
    watch.record("1", Heartbeat("c", "o", "s", 1), now=0.0)
    watch.record(*later, now=5.0)
    assert watch.is_alive
