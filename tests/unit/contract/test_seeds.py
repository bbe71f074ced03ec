"""The seeds of a job, and the files that keep them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import checkpoints

from ftlaunch.checkpoints.job_seed import settle
from ftlaunch_contract.checkpoint import layout, seeds
from ftlaunch_contract.checkpoint.initial import InitialCheckpoint
from ftlaunch_contract.checkpoint.seeds import Seeds


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, Seeds()), ({"FTLAUNCH_SEED": "12", "PYTHONHASHSEED": "0"}, Seeds(12, "0")),
     ({"FTLAUNCH_SEED": "x"}, Seeds()), ({"PYTHONHASHSEED": "random"}, Seeds(None, "random"))],
)  # fmt: skip
def test_seeds_are_read_from_the_environment(environ: dict[str, str], expected: Seeds) -> None:
    assert seeds.of_environment(environ) == expected


def test_a_snapshot_keeps_the_seeds_that_are_known() -> None:
    assert seeds.of_snapshot(json.loads(json.dumps(Seeds(5, "0").entries()))) == Seeds(5, "0")
    assert Seeds(None, "random").entries() == {}
    assert seeds.of_snapshot({"seeds": {"job": "5", "hash": 0}}) == Seeds()
    assert seeds.of_snapshot({}) == Seeds()


def test_a_file_that_is_no_seed_counts_as_none(tmp_path: Path) -> None:
    assert seeds.read(tmp_path) is None
    (tmp_path / seeds.NAME).write_text("[]")
    assert seeds.read(tmp_path) is None
    seeds.keep(tmp_path, 8)
    assert seeds.read(tmp_path) == 8


def test_the_seed_of_the_checkpoints_comes_first_and_a_fresh_start_takes_neither(tmp_path: Path) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    run.mkdir()
    kept.mkdir()
    drawn = settle(run, kept, load=None, fresh=False)
    assert settle(run, kept, load=None, fresh=False) == drawn
    seeds.keep(kept, 3)
    assert settle(run, kept, load=None, fresh=False) == drawn, "without checkpoints it is the run dir's"
    checkpoints.empty(kept, 5)
    assert settle(run, kept, load=None, fresh=False) == 3
    assert seeds.read(run) == 3
    assert settle(run, kept, load=None, fresh=True) not in (3, drawn)


@pytest.mark.parametrize(("weights_only", "same"), [(False, True), (True, False)])
def test_training_that_goes_on_from_another_job_takes_its_seed(tmp_path: Path, weights_only: bool, same: bool) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    seeds.keep(other, 3)
    load = InitialCheckpoint(layout.iteration_dir(other, 5), weights_only)
    assert (settle(run, tmp_path / "kept", load=load, fresh=False) == 3) is same
