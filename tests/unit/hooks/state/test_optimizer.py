"""State of an optimizer comes back in its own dtypes, wherever in it a tensor lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.support.snapshots import equal, save
from torch import nn

from ftlaunch_hooks.state.state import RankState


def optimizer_with(slots: Any) -> torch.optim.Optimizer:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    if slots is not None:
        optimizer.state[parameter].update(slots)
    return optimizer


def test_nested_state_keeps_its_dtypes(memory: Path) -> None:
    """Tried: it fails where only tensors on the first level are put back; torch casts all to the parameter's dtype."""
    codes, scale = torch.tensor([1, 200], dtype=torch.uint8), torch.tensor(0.5, dtype=torch.float16)
    slots = {
        "pair": (codes, scale),
        "by_name": {"codes": codes.clone()},
        "list": [scale.clone(), 3],
        "plain": codes + 1,
    }
    optimizer, other = optimizer_with(slots), optimizer_with(None)
    saved = save(RankState({"optimizer": optimizer}, (), 0, 1), memory)
    RankState({"optimizer": other}, (), 0, 1).restore(saved)
    (found,) = other.state.values()
    assert equal(found, slots)
