"""Weights of MindSpore Transformers' checkpoints: joined as they were cut, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import mindformers
from tests.support.checkpoints import content_of
from torch import Tensor

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.foreign_formats import Format, format_of
from ftlaunch_hooks.storage.foreign.reading import ForeignWeights

CUTS: dict[str, list[mindformers.Axis]] = {
    "decoder.rows": [0, -1],
    "decoder.columns": [-1, 1],
    "decoder.both": [1, 0],
    "decoder.crosswise": [0, 1],
    "decoder.twice": [[1, 0], -1],
    "decoder.bias": [0],
}


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(1)
    made = {key: torch.randn(8, 4) for key in CUTS} | {"decoder.whole": torch.randn(3)}
    return made | {"decoder.bias": torch.randn(4)}


def read(path: Path) -> dict[str, Tensor]:
    """What is read, into tensors of the same names."""
    assert format_of(path) is Format.MINDSPORE
    found, new = ForeignWeights(path, Format.MINDSPORE), {key: torch.zeros_like(one) for key, one in tensors().items()}
    fit = found.fit("model", new)
    assert fit.whole, (fit.missing, fit.surplus)
    fill, others = found.plan("model", new, fit)
    assert not others
    fill()
    return new


@pytest.mark.parametrize("matrix", [(2, 2), (1, 2, 2), (2, 2, 1)], ids=str)
def test_parts_are_joined_as_they_were_cut(matrix: tuple[int, ...], tmp_path: Path) -> None:
    path = mindformers.write(tmp_path, 8, tensors(), CUTS, matrix=matrix)
    before = content_of(tmp_path)
    found = read(path)
    assert all(torch.equal(found[key], one) for key, one in tensors().items())
    assert content_of(tmp_path) == before, "nothing is written there"


def test_one_card_has_whole_tensors_and_no_metadata(tmp_path: Path) -> None:
    path = mindformers.write(tmp_path, 8, tensors(), matrix=(1,))
    assert not (path / layout.METADATA).exists()
    assert all(torch.equal(one, tensors()[key]) for key, one in read(path).items())


def test_a_part_that_one_rank_has_saved_for_all_is_found(tmp_path: Path) -> None:
    """As `remove_redundancy: True` saves."""
    path = mindformers.write(tmp_path, 8, tensors(), CUTS)

    def of_one(told: dict[str, Any]) -> None:
        told["storage_data"] = {part: places[-1:] for part, places in told["storage_data"].items()}

    change(path, of_one)
    assert all(torch.equal(one, tensors()[key]) for key, one in read(path).items())


def change(path: Path, by: Callable[[dict[str, Any]], object]) -> None:
    """Change metadata.json."""
    told = json.loads((path / layout.METADATA).read_text())
    by(told)
    (path / layout.METADATA).write_text(json.dumps(told))


def _entry(name: str, **values: object) -> Callable[[Path], None]:
    return lambda path: change(path, lambda told: told["state_dict_metadata"][name].update(values))


def _cut(name: str, **values: object) -> Callable[[Path], None]:
    return lambda path: change(path, lambda told: told["state_dict_metadata"][name]["layout"].update(values))


def _stored(part: str, **values: object) -> Callable[[Path], None]:
    return lambda path: change(path, lambda told: told["storage_data"][part][0].update(values))


def _in_elements(told: dict[str, Any]) -> None:
    for part in told["state_dict_metadata"]["decoder.bias"]["chunk"]:
        part["global_offset"] = [2 * part["global_offset"][0]]


FILE = "net-model-0000001-0000004.safetensors"
ROWS = "('decoder.rows', (0,))"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: (path / FILE).unlink(), "of its 4 files of weights 3 are there"),
        (lambda path: (path / FILE).rename(path / f"x{FILE}"), "of weights of 2 saves"),
        (lambda path: (path / layout.METADATA).unlink(), r"4 files of weights and no metadata\.json"),
        (lambda path: (path / layout.METADATA).write_text("{"), "cannot be brought together"),
        (lambda path: [file.unlink() for file in path.glob("*-model-*")], "no file of weights"),
        (lambda path: change(path, lambda told: told["state_dict_metadata"].pop("decoder.bias")), "nothing is said"),
        (lambda path: change(path, lambda told: told["storage_data"].pop(ROWS)), "is not told"),
        (lambda path: change(path, _in_elements), "are not numbered one by one"),
        (_entry("decoder.rows", chunk=[]), "not all parts of decoder.rows are listed"),
        (_entry("decoder.rows", axis_fragmentations=[3, 1]), "not cut into equal parts"),
        (_entry("decoder.whole", global_shape=[4]), r"is \(3,\), and not \(4,\)"),
        (_cut("decoder.rows", interleaved_parallel=True), "interleaved"),
        (_cut("decoder.rows", tensor_map=[-1, 0]), "contradict each other"),
        (_cut("decoder.rows", tensor_map=[2, -1]), "names a dimension that is not there"),
        (_cut("decoder.rows", rank_list=[4, 5, 6, 7]), "rank 0 has no place"),
        (_stored(ROWS, file_name="../w.safetensors"), "no such file of weights has it"),
        (_stored(ROWS, file_name="net-opt-0000000-0000004.safetensors"), "no such file of weights has it"),
        (_stored(ROWS, file_name=FILE, storage_rank=1), "with rank 1, which has another one"),
    ],
)
def test_what_does_not_fit_together_is_refused(damage: Callable[[Path], object], why: str, tmp_path: Path) -> None:
    """The last one, as early releases wrote it. Taken out: without _number_of the rows of rank 1 come twice."""
    path = mindformers.write(tmp_path, 8, tensors(), CUTS)
    damage(path)
    with pytest.raises(Damaged, match=why):
        ForeignWeights(path, Format.MINDSPORE)
