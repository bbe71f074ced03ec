"""Weights from checkpoints that other libraries wrote: read as they are, or refused with the reason."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_saver import save

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.foreign_formats import Format, format_of
from ftlaunch_hooks.storage.foreign.reading import ForeignWeights
from ftlaunch_hooks.tensors.json_codec import StateError


def model(seed: int, features: int = 6) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(4, features), nn.BatchNorm1d(features), nn.Linear(features, 4, bias=False))
    made.register_parameter("tied", made[2].weight)
    return made


def load(path: Path, into: nn.Module) -> list[str]:
    """Fill a module; returns the names of those that were converted."""
    kind = format_of(path)
    assert kind is not None
    found, tensors = ForeignWeights(path, kind), into.state_dict(keep_vars=True)
    fit = found.fit("model", tensors)
    assert fit.whole, (fit.missing, fit.surplus)
    fill, others = found.plan("model", tensors, fit)
    fill()
    return list(others)


def without_ties(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in module.state_dict().items() if name != "tied"}


def _hf_parts(path: Path, module: nn.Module) -> None:
    path.mkdir()
    tensors = without_ties(module)
    parts = {"a.safetensors": list(tensors)[:2], "b.safetensors": list(tensors)[2:]}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, path / file)
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def _hf_bin(path: Path, module: nn.Module) -> None:
    path.mkdir()
    torch.save(module.state_dict(), path / "pytorch_model.bin")


def _lightning(path: Path, module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    content = {"epoch": 3, "global_step": 70, "state_dict": module.state_dict(), "loops": {"state": {"x": [1]}}}
    torch.save({**content, "optimizer_states": [optimizer.state_dict()]}, path)


def _old(path: Path, module: nn.Module) -> None:
    torch.save(module.state_dict(), path, _use_new_zipfile_serialization=False)


def _dcp(path: Path, module: nn.Module) -> None:
    save({"model": module.state_dict(), "step": 7}, checkpoint_id=path, no_dist=True)


WRITERS: dict[str, tuple[str, Format, Callable[[Path, nn.Module], object]]] = {
    "safetensors": ("w.safetensors", Format.SAFETENSORS, lambda path, one: save_file(without_ties(one), path)),
    "hf in parts": ("hub", Format.HF, _hf_parts),
    "hf bin": ("hub", Format.HF, _hf_bin),
    "state_dict": ("w.pt", Format.TORCH, lambda path, one: torch.save(one.state_dict(), path)),
    "no suffix": ("weights", Format.TORCH, lambda path, one: torch.save({"model": one.state_dict()}, path)),
    "before torch 1.6": ("old.pth", Format.TORCH, _old),
    "lightning": ("last.ckpt", Format.TORCH, _lightning),
    "dcp": ("dcp", Format.DCP, _dcp),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_weights_are_those_that_were_written(kind: str, tmp_path: Path) -> None:
    name, expected, write = WRITERS[kind]
    trained, new = model(1), model(2)
    trained(torch.randn(8, 4))  # BatchNorm's statistics are another's, too
    write(tmp_path / name, trained)
    assert format_of(tmp_path / name) is expected
    before = [one.data_ptr() for one in new.parameters()]
    assert load(tmp_path / name, new) == []
    expected_state = trained.state_dict()
    assert all(torch.equal(one, expected_state[name]) for name, one in new.state_dict().items())
    assert [one.data_ptr() for one in new.parameters()] == before, "in place: optimizers know these parameters"


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_a_dcp_folder_of_another_python_is_read(module: str, tmp_path: Path) -> None:
    """Python 3.13 pickles the class of paths as one of pathlib._local, every other version as one of pathlib."""
    trained, new = model(1), model(2)
    _dcp(tmp_path / "dcp", trained)
    index = pickle.dumps(FileSystemReader(tmp_path / "dcp").read_metadata(), protocol=2)
    other_index, count = re.subn(rb"cpathlib(\._local)?\nPosixPath\n", b"c%b\nPosixPath\n" % module.encode(), index)
    assert count == 1
    (tmp_path / "dcp/.metadata").write_bytes(other_index)
    assert load(tmp_path / "dcp", new) == []
    assert all(torch.equal(one, trained.state_dict()[name]) for name, one in new.state_dict().items())


def test_other_types_are_converted_and_told(tmp_path: Path) -> None:
    trained, new = model(1).bfloat16(), model(2)
    save_file(without_ties(trained), tmp_path / "w.safetensors")
    assert load(tmp_path / "w.safetensors", new) == [n for n in new.state_dict() if n != "1.num_batches_tracked"]
    assert torch.equal(new[0].weight, trained[0].weight.float())  # type: ignore[index]


def test_another_shape_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    torch.save(model(1, features=5).state_dict(), tmp_path / "w.pt")
    new = model(2)
    before = {name: one.clone() for name, one in new.state_dict().items()}
    with pytest.raises(StateError, match=r"`model\.tied` is \(4, 6\) of torch\.float32, and tied is \(4, 5\)"):
        load(tmp_path / "w.pt", new)
    assert all(torch.equal(one, before[name]) for name, one in new.state_dict().items())


def test_stacked_layers_go_to_their_places(tmp_path: Path) -> None:
    """As Megatron-core's `torch_dist` format stores layers that are alike."""
    layers = nn.Module()
    layers.layers = nn.ModuleList(nn.Linear(3, 2) for _ in range(4))
    stacked = {
        "layers.weight": torch.stack([one.weight.detach() for one in layers.layers]),
        "layers.bias": torch.stack([one.bias.detach() for one in layers.layers]),
    }
    save(stacked, checkpoint_id=tmp_path / "iter", no_dist=True)
    new = nn.Module()
    new.layers = nn.ModuleList(nn.Linear(3, 2) for _ in range(4))
    load(tmp_path / "iter", new)
    assert all(torch.equal(one, layers.state_dict()[name]) for name, one in new.state_dict().items())


def test_a_module_with_fewer_layers_is_refused(tmp_path: Path) -> None:
    """Taken out: without _check_layers the last layers of the checkpoint are left without a word."""
    save(
        {"layers.weight": torch.rand(4, 2, 3), "layers.bias": torch.rand(4, 2)},
        checkpoint_id=tmp_path / "iter",
        no_dist=True,
    )
    new = nn.Module()
    new.layers = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))
    with pytest.raises(StateError, match=r"layers\.(weight|bias) has 4 layers, and `model` has 3"):
        load(tmp_path / "iter", new)


# --- what is not to be trusted ---------------------------------------------------------------------------------


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("where", ["w.pt", "hub/pytorch_model.bin", "dcp/.metadata"])
def test_nothing_of_a_file_is_run(where: str, tmp_path: Path) -> None:
    path, mark = tmp_path / where, tmp_path / "it_ran"
    path.parent.mkdir(exist_ok=True)
    content = {"epoch": 1, "note": Evil(mark)}
    if path.name == ".metadata":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)
    top = path if path.suffix == ".pt" else path.parent
    kind = format_of(top)
    assert kind is not None
    with pytest.raises(Damaged, match=r"could run anything|cannot be read \(UnpicklingError: it names posix\.mkdir\)"):
        ForeignWeights(top, kind)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Evil(mark)))
    assert mark.exists(), "it would have run"


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda path: (path / "model.safetensors").write_bytes(b"\x10"), "cut short"),
        (lambda path: (path / "model.safetensors.index.json").write_text("{"), "cannot be read"),
        (lambda path: _index(path, "../x.safetensors"), "not in the folder"),
        (lambda path: _index(path, "gone.safetensors"), "No such file"),
        (lambda path: (path / "pytorch_model.bin").write_bytes(b"PK\x03\x04 nothing"), "cannot be read"),
        (lambda path: torch.save({"step": 3}, path / "pytorch_model.bin"), "holds no tensors"),
    ],
)
def test_what_is_damaged_is_refused(write: Callable[[Path], object], why: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises((Damaged, OSError), match=why):
        ForeignWeights(tmp_path, Format.HF)


def _index(path: Path, file: str) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"0.weight": file}}))


def test_a_dcp_part_outside_the_folder_is_refused(tmp_path: Path) -> None:
    save({"model": model(1).state_dict()}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    index = (tmp_path / "dcp" / ".metadata").read_bytes()
    assert b"__0_0.distcp" in index
    (tmp_path / "dcp" / ".metadata").write_bytes(index.replace(b"__0_0.distcp", b"../../0.dist"))
    with pytest.raises(Damaged, match="not in the folder"):
        ForeignWeights(tmp_path / "dcp", Format.DCP)
