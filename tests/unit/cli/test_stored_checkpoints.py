"""`ftctl checkpoints ADDRESS`: what a store holds, whether it is whole, and what may be deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import checkpoints
from tests.support.ctl import ftctl
from tests.support.stores import Machine

from ftlaunch.checkpoints.stores import heartbeat, index
from ftlaunch.checkpoints.stores.heartbeat import Heartbeat, HeartbeatThread
from ftlaunch.checkpoints.stores.stored_checkpoints import OvertakenError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine whose job has saved, gone back, and ended."""
    made = Machine(tmp_path, "first")
    made.start()
    made.save(10, 20, 30)
    made.stored.put_aside(above=20)
    for path in (made.directory / "iteration_0000030").iterdir():
        path.unlink()
    (made.directory / "iteration_0000030").rmdir()
    made.save(40)
    end(made)
    return made


def end(machine: Machine) -> None:
    """What the keeper says when it leaves."""
    thread = HeartbeatThread(machine.store, machine.stored.token, owner="first pid 7", overtaken=lambda _: None)
    thread.start()
    thread.end()


@pytest.fixture
def run(machine: Machine, tmp_path: Path) -> Run:
    return lambda *words: ftctl("checkpoints", machine.address, *words, cwd=tmp_path)


def test_the_index_is_listed(machine: Machine, run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    first, header, *rows = out.splitlines()
    assert first == f"{machine.address}: job net, last kept by first pid 7"
    assert header.split() == ["step", "size", "files", "state", "verified", "health"]
    assert [row.split()[0] for row in rows[:4]] == ["40", "30", "20", "10"]
    assert [row.split()[4] for row in rows[:4]] == ["complete", "aside", "complete", "complete"]
    assert "step 30 was put aside as 30-1-" in rows[4]
    code, out, _ = run("--json")
    entries = json.loads(out)
    assert [(entry["step"], entry["complete"], entry["verified"]) for entry in entries] == [
        (40, True, None), (30, False, None), (20, True, None), (10, True, None),
    ]  # fmt: skip
    stored = machine.index.steps[40]
    assert (entries[0]["bytes"], entries[0]["files"]) == (stored.bytes, len(stored.files))


def test_what_a_job_has_refused_is_said(machine: Machine, run: Run, tmp_path: Path) -> None:
    machine.flip_a_bit(40, checkpoints.MODEL)
    other = Machine(tmp_path, "second")
    other.start()
    assert other.steps == [20]
    _, out, _ = run()
    assert "step 40 is damaged: steps/iteration_0000040-" in out
    assert f"/{checkpoints.MODEL} does not match its checksum" in out


def test_every_byte_is_read(machine: Machine, run: Run) -> None:
    before = machine.store.read(index.NAME)
    code, out, _ = run("verify")
    assert code == 0
    assert [line.partition(" (")[0] for line in out.splitlines()] == [
        f"step {step}: every byte is right" for step in (40, 20, 10)
    ]
    machine.flip_a_bit(20, checkpoints.OPT)
    machine.object_path(10, "common.json").unlink()
    code, out, _ = run("verify")
    assert code == 1
    assert "step 40: every byte is right" in out
    assert f"/{checkpoints.OPT} does not match its checksum" in out
    assert f"/common.json is not in {machine.address} any more" in out
    code, out, _ = run("verify", "20", "--json")
    assert code == 1
    [entry] = json.loads(out)
    assert (entry["step"], entry["verified"], entry["state"]) == (20, False, "damaged")
    assert run("verify", "40")[0] == 0
    code, _, err = run("verify", "41")
    assert code == 1
    assert f"cannot verify: there is no checkpoint of step 41 in {machine.address}; it has 10, 20, 40" in err
    assert machine.store.read(index.NAME) == before, "nothing is written"


def test_old_steps_are_deleted_as_in_a_folder(machine: Machine, run: Run) -> None:
    aside = {name for stored in machine.index.aside.values() for name in stored.objects}
    machine.flip_a_bit(40, checkpoints.MODEL)
    machine.store.upload(machine.object_path(10, "common.json"), "steps/left-1-0/common.json", lambda _: None)
    size = machine.index.steps[10].bytes
    code, out, _ = run("prune", "--keep", "1")
    assert code == 0
    assert out.splitlines()[0] == f"deleted step 10 ({size / 1024:.1f} KiB)"
    assert "deleted 1 object that interrupted uploads had left" in out
    assert out.splitlines()[-1] == "kept: 40, 20", "20 is the newest that verifies"
    assert machine.objects == machine.index.objects
    assert aside < machine.objects, "what was put aside stays"
    _, out, _ = run("prune", "--keep", "1", "--json")
    assert json.loads(out) == {"deleted": [], "cleared": 0, "stayed": []}
    back = Machine(machine.root.parent, "first")
    back.start()
    assert back.steps == [40, 20, 10], "the machine itself goes on as before"


def test_nothing_is_deleted_while_a_job_keeps_the_store(
    machine: Machine, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "LOOK_SECONDS", 0.05)
    again = Machine(machine.root.parent, "first")
    again.start()
    thread = HeartbeatThread(
        again.store, again.stored.token, owner="first pid 7", overtaken=lambda _: None, period_seconds=0.02
    )
    thread.start()
    before = machine.objects
    code, out, err = run("prune", "--keep", "1")
    thread.end()
    assert code == 1
    assert not out
    assert "cannot prune: job net runs on first pid 7 since " in err
    assert "and deletes what its `keep` says; nothing was deleted" in err
    assert machine.objects == before
    assert run("prune", "--keep", "1")[0] == 0, "it has left"


def test_a_job_that_begins_meanwhile_wins(machine: Machine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out (an unconditional replacement): the job that has just begun finds itself overtaken."""
    plain = heartbeat.wait_until_gone
    other = Machine(machine.root.parent, "second")

    def wait_until_gone(*args: object, **named: object) -> None:
        plain(*args, **named)  # type: ignore[arg-type]
        other.start()

    monkeypatch.setattr(heartbeat, "wait_until_gone", wait_until_gone)
    before = machine.objects
    code, _, err = run("prune", "--keep", "1")
    assert code == 1
    assert "cannot prune: a job has begun to keep the store meanwhile; nothing was deleted" in err
    assert machine.objects == before
    other.save(50)
    with pytest.raises(OvertakenError):
        machine.save(45)


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        ("s3://me:5ecret@bucket/a", 2, "cannot use s3://***@bucket/a: a user name or a password has no place"),
        ("s4://bucket/a", 2, "cannot use s4://bucket/a: it must be a folder, or an address that begins with file://"),
        ("file://host/a", 2, "cannot use file://host/a: it must be file:///PATH"),
        ("file:///a?b", 2, "cannot use file:///a: it must end with a path"),
        (
            "file:///nowhere",
            1,
            "cannot list: file:///nowhere is no checkpoint store of ftlaunch: it has no",
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(place: str, code: int, said: str, tmp_path: Path) -> None:
    found, out, err = ftctl("checkpoints", place, cwd=tmp_path)
    assert (found, out) == (code, "")
    assert said in err
    assert "5ecret" not in err


def test_an_index_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / index.NAME).write_text('{"version": 9}')
    code, _, err = ftctl("checkpoints", f"file://{tmp_path}", cwd=tmp_path)
    assert code == 1
    assert f"cannot list: file://{tmp_path}/ftlaunch.json cannot be used: the index has version 9" in err


def test_a_step_cannot_be_shown_there(run: Run) -> None:
    code, _, err = run("show", "40")
    assert code == 1
    assert "only a checkpoint in a folder can be looked into; `export` brings it" in err


def test_the_place_may_stand_behind_the_command(machine: Machine, tmp_path: Path) -> None:
    code, out, _ = ftctl("checkpoints", "verify", machine.address, cwd=tmp_path)
    assert (code, len(out.splitlines())) == (0, 3)


def test_a_folder_says_where_its_store_is(machine: Machine, tmp_path: Path) -> None:
    _, out, _ = ftctl("checkpoints", machine.directory, cwd=tmp_path)
    assert out.splitlines()[-1] == f"their job keeps them in a store, too: `ftctl checkpoints {machine.address}`"


def test_a_lost_owner_is_waited_for(machine: Machine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.store.read(heartbeat.NAME)
    assert found is not None
    lost = Heartbeat(machine.stored.token, "first pid 7", "long ago")
    machine.store.replace(heartbeat.NAME, heartbeat.dump(lost), found.version)
    waited: list[float] = []
    plain = heartbeat.wait_until_gone

    def wait_until_gone(*args: object, **named: object) -> None:
        plain(*args, **named, silent_seconds=0.1)  # type: ignore[arg-type]
        waited.append(0.1)

    monkeypatch.setattr(heartbeat, "wait_until_gone", wait_until_gone)
    code, out, err = run("prune", "--keep", "2")
    assert code == 0, err
    assert waited
    assert "waiting up to 0 s for a sign of life of first pid 7, which has not said that it left" in err
    assert "deleted step 10" in out
