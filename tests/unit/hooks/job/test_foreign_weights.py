"""Which modules take the weights of another library's checkpoint: refused where that is not clear."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ftlaunch_contract.foreign_formats import Format
from ftlaunch_hooks.job.foreign_weights import load_weights
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.json_codec import StateError


def load(path: Path, **modules: nn.Module) -> None:
    load_weights(path, Format.TORCH, RankState(modules, (), 0, 1).modules(), should_log=True)


def test_of_averaged_and_trained_weights_none_is_guessed(tmp_path: Path) -> None:
    """Taken out: without `rivals` the averaged ones are loaded, as their name comes first."""
    trained, averaged = nn.Linear(2, 2), nn.Linear(2, 2)
    torch.save({"trained": trained.state_dict(), "averaged": averaged.state_dict()}, tmp_path / "both.pt")
    with pytest.raises(StateError, match=r"what fits `net` in several places \(`averaged\.`, `trained\.`\)"):
        load(tmp_path / "both.pt", net=nn.Linear(2, 2))
    chosen = nn.Linear(2, 2)
    load(tmp_path / "both.pt", trained=chosen)
    assert torch.equal(chosen.weight, trained.weight)


def test_of_two_modules_that_fit_none_is_guessed(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "one.pt")
    with pytest.raises(StateError, match="holds one module, and it fits `actor` as well as `critic`"):
        load(tmp_path / "one.pt", actor=nn.Linear(2, 2), critic=nn.Linear(2, 2))


def test_each_module_takes_its_own_and_what_is_not_there_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    policy, new, other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(3, 3)
    torch.save({"policy": policy.state_dict(), "optimizer": {"lr": 0.1}}, tmp_path / "one.pt")
    before = other.weight.clone()
    load(tmp_path / "one.pt", policy=new, value=other)
    assert torch.equal(new.weight, policy.weight)
    assert torch.equal(other.weight, before)
    assert "took the weights of `policy` (2 tensors)" in (said := capfd.readouterr().err)
    assert "`value` keep what the script gave them" in said
