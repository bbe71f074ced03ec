"""Two checkpoints hold the same, or what differs is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.checkpoints import commit

from ftlaunch.tools.rehearsal.checkpoint_diff import Likeness, compare
from ftlaunch.tools.rehearsal.rehearsal import RehearsalOutcome
from ftlaunch.tools.rehearsal.view import data, line, verdict


def edit(directory: Path, change: object, name: str = "scheduler") -> None:
    """Change common.json, and seal the checkpoint again."""
    from ftlaunch_contract.checkpoint import layout, verify
    from ftlaunch_contract.files import checksums

    path = directory / layout.COMMON
    common = json.loads(path.read_bytes())
    common["state"][name] = change
    path.write_bytes(json.dumps(common).encode())
    metadata = verify.read_metadata(directory)
    metadata["files"][layout.COMMON] = {
        "bytes": path.stat().st_size,
        checksums.NAME: checksums.of_bytes(path.read_bytes()),
    }
    (directory / layout.METADATA).write_bytes(verify.seal(metadata))


def test_the_same_step_of_two_runs_is_equal(tmp_path: Path) -> None:
    """Names of files and times of day differ."""
    one, other = (commit(tmp_path / name, 3) for name in ("one", "other"))
    assert compare(one, other) == Likeness()


def test_what_differs_is_named(tmp_path: Path) -> None:
    one, other = commit(tmp_path / "one", 3), commit(tmp_path / "other", 3)
    edit(other, "elsewhere")
    assert compare(one, other).others == ("scheduler",)
    assert not compare(one, other).equal


def test_what_varies_anyway_is_not_compared(tmp_path: Path) -> None:
    """A folder with a number, which names tensors, too."""
    one, again, other = (commit(tmp_path / name, 3) for name in ("one", "again", "other"))
    for directory, folder, epoch in ((one, "v_1", 3), (again, "v_2", 3), (other, "v_3", 4)):
        best = {"kind": "other", "state": {"folder": folder, "best": {folder: 1}, "epoch": epoch}}
        edit(directory, best)
    varying = compare(one, again).places
    assert varying == ("scheduler.best", "scheduler.folder")
    assert compare(one, again).without(varying).equal
    assert compare(one, other).without(varying).others == ("scheduler",)
    assert compare(one, other).without([*varying, "scheduler.epoch"]).equal


def test_of_variables_of_the_loop_the_values_are_compared(tmp_path: Path) -> None:
    """What is noted of them beside that tells of a job's lives. Taken out: without `_values_alone` these differ."""
    one, other = commit(tmp_path / "one", 3), commit(tmp_path / "other", 3)
    value = ["train:best", "train", "local", "best", 0.5]
    edit(one, {"begin": {"train:start": "0"}, "values": [value]}, "loop_variables")
    edit(other, {"begin": {"train:start": "2"}, "values": [value]}, "loop_variables")
    assert compare(one, other) == Likeness()
    edit(other, {"begin": {}, "values": [[*value[:4], 0.25]]}, "loop_variables")
    assert compare(one, other).others == ("loop_variables",)


GOOD = RehearsalOutcome("a rank is killed", 5.0, True, 0, 1.5, Likeness())
OTHER = RehearsalOutcome("a rank is frozen", 5.0, True, 2, 1.5, Likeness(tensors=("a", "b", "c", "d")))
DEAD = RehearsalOutcome("storage is full", 5.0, False, trouble="no save has failed")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (RehearsalOutcome("undisturbed", 5.0, True), "ok    undisturbed           20 steps in 5.0 s"),
        (GOOD, "back in 1.5 s, 0 steps lost, its state at step 20 equals the undisturbed one bit for bit"),
        (OTHER, "BAD   a rank is frozen      back in 1.5 s, 2 steps lost, its state at step 20 differs"),
        (OTHER, "from the undisturbed one: a, b, c and 1 more"),
        (DEAD, "BAD   storage is full       does not survive: no save has failed"),
    ],
)
def test_a_line(outcome: RehearsalOutcome, said: str) -> None:
    assert said in line(outcome, 20)


def test_the_verdict() -> None:
    assert verdict([GOOD], True).endswith("goes on as if nothing had happened")
    seeds = RehearsalOutcome("x", 5.0, True, 0, 1.0, Likeness(generators=("rng.numpy.__tuple__.1@0", "rng.python.1")))
    assert "(random numbers of numpy, python differ" in verdict([GOOD, seeds], True)
    assert "something that matters is not attached" in verdict([GOOD, OTHER], True)
    assert "not deterministic" in verdict([GOOD, OTHER], False)
    assert verdict([GOOD, DEAD], True) == "the job does not survive when storage is full"
    assert data([GOOD, OTHER], 20, True, ())["equal"] is False
    assert verdict([GOOD], True, ["lightning.folder"]).endswith("it is another one in every run: lightning.folder)")
