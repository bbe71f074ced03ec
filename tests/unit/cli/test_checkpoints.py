"""`ftctl checkpoints`, against real checkpoint directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import checkpoint, content_of, flip_a_bit, mindspore, steps

from ftlaunch.checkpoints import catalog
from ftlaunch.cli import ctl
from ftlaunch.history.journal import read_events
from ftlaunch.history.runs import load
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.dirlock import CHECKPOINT_LOCK, DirLock

NO_JOURNAL = "no journal has that: no run is known that saves here"


class Ftctl:
    """The command, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str | Path) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of `ftctl checkpoints WORDS`."""
        with pytest.raises(SystemExit) as end:
            ctl.main(["checkpoints", *map(str, words)])
        told = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, told.out, told.err

    def data(self, *words: str | Path, code: int = 0) -> Any:
        """What it prints as JSON."""
        given, out, err = self(*words, "--json")
        assert (given, err) == (code, "")
        return json.loads(out)


@pytest.fixture
def ftctl(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ftctl:
    monkeypatch.chdir(tmp_path)
    return Ftctl(capsys)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """30 is whole, 20 is damaged, 15 is in quarantine, 10 is whole, and a save of 40 was interrupted."""
    for step in (10, 15, 20, 30):
        checkpoint(tmp_path / "ck", step, ranks=2, why="stop" if step == 30 else "interval")
    layout.quarantine(tmp_path / "ck", layout.iteration_dir(tmp_path / "ck", 15), "a test said so")
    flip_a_bit(layout.iteration_dir(tmp_path / "ck", 20))
    unfinished = layout.incomplete_dir(tmp_path / "ck", 40)
    unfinished.mkdir()
    (unfinished / "part_0000000.json").write_text("{}")
    (tmp_path / "ck" / "notes.txt").write_text("a user's own")
    return tmp_path / "ck"


def test_a_list(ftctl: Ftctl, place: Path) -> None:
    code, out, _ = ftctl(place)
    assert code == 0
    head, *rows = (line.split() for line in out.splitlines())
    assert head == ["step", "why", "size", "ranks", "state", "verified", "health", "age"]
    assert [row[0] for row in rows[:5]] == ["40", "30", "20", "15", "10"]
    assert rows[0][4] == "interrupted"
    assert (rows[1][1], rows[1][4:8]) == ("stop", ["2", "complete", "not", "read"])
    assert "iteration_0000015 is quarantined: a test said so" in out
    entries = {entry["step"]: entry for entry in ftctl.data(place)}
    assert {step: entry["complete"] for step, entry in entries.items()} == {
        40: False, 30: True, 20: True, 15: False, 10: True,
    }  # fmt: skip
    assert (entries[30]["why"], entries[30]["ranks"], entries[30]["verified"]) == ("stop", 2, None)
    assert entries[30]["bytes"] == sum(
        path.stat().st_size for path in layout.iteration_dir(place, 30).iterdir() if path.name != layout.METADATA
    )
    assert 0 <= entries[30]["age"] < 3600


def test_a_list_sees_what_has_another_size(ftctl: Ftctl, place: Path) -> None:
    victim = flip_a_bit(layout.iteration_dir(place, 30))
    victim.write_bytes(victim.read_bytes()[:-1])
    entry = next(entry for entry in ftctl.data(place) if entry["step"] == 30)
    assert (entry["state"], entry["verified"]) == ("damaged", False)
    assert victim.name in entry["problem"]


def test_verify_reads_every_byte(ftctl: Ftctl, place: Path) -> None:
    code, out, _ = ftctl(place, "verify")
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines()] == ["step 30", "step 20", "step 10"]
    assert "every byte is right" in out.splitlines()[0]
    assert "damaged: net-model-0000000-0000002.safetensors does not match its checksum" in out.splitlines()[1]
    assert ftctl(place, "verify", "30")[0] == 0
    assert ftctl(place, "verify", "20")[0] == 1
    assert [entry["verified"] for entry in ftctl.data(place, "verify", code=1)] == [True, False, True]
    assert steps(place) == [30, 20, 10], "nothing is moved"
    assert ftctl(place, "verify", "11") == (
        1, "", f"ftctl: cannot verify: there is no checkpoint of step 11 in {place}\n"
    )  # fmt: skip


def test_show(ftctl: Ftctl, place: Path) -> None:
    code, out, _ = ftctl(place, "show", "30")
    assert code == 0
    assert "why: stop, by 2 ranks" in out
    assert "120 consumed" in out
    assert "torch 9.9" in out
    assert "model (module)" in out
    [row] = [line.split() for line in out.splitlines() if line.startswith("model.w")]
    assert row[:5] == ["model.w", "F32", "4x3", "12", "2"]
    found = ftctl.data(place, "show", "30")
    assert found["tensors"]["model.w"]["shape"] == [4, 3]
    assert [chunk["offset"] for chunk in found["tensors"]["model.w"]["chunks"]] == [[0, 0], [2, 0]]
    assert found["tensors"]["loss@1"]["shape"] == []
    code, _, err = ftctl(place, "show", "31")
    assert (code, err) == (1, f"ftctl: cannot show: there is no checkpoint of step 31 in {place}\n")


def test_prune_keeps_the_newest_that_verify(ftctl: Ftctl, place: Path) -> None:
    """Of 30, 20 (damaged) and 10: the only good one is never deleted for the sake of one that is damaged."""
    code, out, _ = ftctl(place, "prune", "--keep", "2")
    assert (code, out) == (0, f"deleted what an interrupted save of step 40 had left\n{NO_JOURNAL}\nkept: 30, 20, 10\n")
    flip_a_bit(layout.iteration_dir(place, 30))
    assert ftctl(place, "prune", "--keep", "1") == (0, "nothing to delete\nkept: 30, 20, 10\n", "")
    checkpoint(place, 40)
    code, out, _ = ftctl(place, "prune", "--keep", "1", "--keep-every", "20")
    assert code == 0
    assert [line.split("(")[0] for line in out.splitlines()] == [
        "deleted step 30 ",
        "deleted step 10 ",
        NO_JOURNAL,
        "kept: 40, 20",
    ]
    assert steps(place) == [40, 20]
    assert sorted(path.name for path in place.iterdir() if path.is_file()) == [
        CHECKPOINT_LOCK, layout.TRACKER, "notes.txt",
    ]  # fmt: skip
    assert (place / "quarantine" / "iteration_0000015").is_dir()
    assert ftctl(place, "prune", "--keep", "0")[0] == 2
    assert ftctl(place, "prune")[0] == 2


def test_prune_says_what_had_to_stay(ftctl: Ftctl, place: Path) -> None:
    (layout.iteration_dir(place, 10) / "mine.txt").touch()
    code, out, _ = ftctl(place, "prune", "--keep", "1")
    assert code == 1
    assert "stays: mine.txt in it is not ours" in out


def test_prune_is_refused_while_a_job_saves_there(ftctl: Ftctl, place: Path) -> None:
    lock = DirLock(place, name=CHECKPOINT_LOCK)
    code, _, err = ftctl(place, "prune", "--keep", "1")
    assert code == 1
    assert f"cannot prune: {place} is in use by a running " in err
    assert steps(place) == [30, 20, 10]
    lock.release()
    assert ftctl(place, "prune", "--keep", "1")[0] == 0


@pytest.mark.parametrize("by", ["run", "directory"])
def test_the_journal_has_what_prune_deletes(ftctl: Ftctl, place: Path, tmp_path: Path, by: str) -> None:
    """Whichever name the directory is given by; and the run has ended as before."""
    run = run_dir(tmp_path / "runs" / "one", place)
    end = {"t": "2031-01-02T04:04:05.000Z", "mono": 9, "attempt": 3, "event": "job_finished", "code": 0, "restarts": 0}
    with (run / "events.jsonl").open("a") as journal:
        journal.write(json.dumps(end) + "\n")
    assert ftctl.data(run if by == "run" else place, "prune", "--keep", "1")["journal"] == str(run / "events.jsonl")
    told = [event for event in read_events(run) if event["event"] == "checkpoint_deleted"]
    assert [(event["step"], event["why"], event["path"], event["keep"], event["attempt"]) for event in told] == [
        (40, "interrupted", str(layout.incomplete_dir(place, 40)), 1, 3),
        (20, "prune", str(layout.iteration_dir(place, 20)), 1, 3),
        (10, "prune", str(layout.iteration_dir(place, 10)), 1, 3),
    ]
    ended = load(run).end
    assert ended is not None and ended["event"] == "job_finished"


# --- which directory --------------------------------------------------------------------------------------


def run_dir(path: Path, directory: Path) -> Path:
    path.mkdir(parents=True)
    event = {"t": "2031-01-02T03:04:05.000Z", "mono": 1, "attempt": 0, "event": "job_started", "job_id": "j"}
    (path / "events.jsonl").write_text(json.dumps(event | {"checkpoint_dir": str(directory)}) + "\n")
    return path


def test_a_run_means_its_checkpoint_directory(ftctl: Ftctl, place: Path, tmp_path: Path) -> None:
    run = run_dir(tmp_path / "runs" / "one", place)
    for words in ([run], ["one"], ["runs/one"], []):
        assert len(ftctl.data(*words)) == 5
    assert ftctl("verify", "30")[0] == 0, "the only run in ./runs"
    assert ftctl("one", "verify", "30")[0] == 0
    assert catalog.directory_of(None) == place


def test_what_is_no_place_is_said(ftctl: Ftctl, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert ftctl(tmp_path / "empty") == (0, f"there is no checkpoint in {tmp_path / 'empty'}\n", "")
    assert ftctl(tmp_path / "empty", "verify")[0] == 1
    code, _, err = ftctl("nowhere")
    assert code == 2
    assert "there is no events.jsonl in nowhere or runs/nowhere" in err
    code, _, err = ftctl(layout.iteration_dir(place, 30))
    assert code == 2
    assert "is one checkpoint; name the directory it lies in, and `show 30`" in err


# --- what others have put there ----------------------------------------------------------------------------


def test_what_is_anothers_is_named_and_left_alone(ftctl: Ftctl, tmp_path: Path) -> None:
    for step in (10, 20):
        checkpoint(tmp_path / "ck", step)
    theirs = mindspore(tmp_path / "ck", 15)
    files = content_of(theirs)
    words = f"{theirs} belongs to another program (MindSpore Transformers' Checkpoint 2.0)"
    assert f"{words}; it is left alone" in ftctl(tmp_path / "ck")[1]
    assert {entry["step"]: entry["state"] for entry in ftctl.data(tmp_path / "ck")} == {
        20: "complete", 15: "foreign", 10: "complete",
    }  # fmt: skip
    code, out, _ = ftctl(tmp_path / "ck", "verify")
    assert (code, out.splitlines()[0]) == (0, f"step 15: not looked at: {words}; it is left alone")
    for doing, more in (("verify", []), ("show", []), ("export", [tmp_path / "to", "--to", "hf"])):
        code, _, err = ftctl(tmp_path / "ck", doing, "15", *more)
        assert (code, err) == (
            1, f"ftctl: cannot {doing}: there is no checkpoint of step 15 in {tmp_path / 'ck'}: {words}\n"
        )  # fmt: skip
    code, out, _ = ftctl(tmp_path / "ck", "prune", "--keep", "1")
    assert code == 0 and "kept: 20" in out and "deleted step 10" in out
    assert content_of(theirs) == files
