"""Whether a GPU has room for private copies; to be run with nothing else on the GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import create_page, open_pages, page_path
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState

ON_GPU = os.environ.get("FT_DEVICE", "cuda") == "cuda"


def ballast(share: float) -> torch.Tensor:
    """Take a share of the GPU's memory, as a model and its activations do."""
    return torch.empty(int(share * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device="cuda")


@pytest.mark.skipif(not ON_GPU, reason="there is no GPU here: run on a machine with CUDA")
@pytest.mark.parametrize(("share", "has_room"), [(0.86, True), (0.93, False)])
def test_there_is_room_for_one_private_copy_again_and_again(memory: Path, share: float, has_room: bool) -> None:
    """The state is 5 % of the GPU, and 5 % stay free: two copies would not fit besides 86 %, nor one besides 93 %."""
    create_page(page_path(memory, 0))
    [page] = open_pages(memory, 1)
    page.begin(0, os.getpid(), 0)
    held = ballast(share - 0.05)
    model = nn.ParameterList([nn.Parameter(ballast(0.05), requires_grad=False)])
    snapshots = Snapshotter(RankState({"model": model}, (), 0, 1), page, [page], memory, 0, {})
    for step in range(1, 5):
        with torch.no_grad():
            model[0].fill_(step)
        snapshots.capture(step)
        assert snapshots.is_copying == (has_room and step > 1)
        with torch.no_grad():
            model[0].fill_(0)
        snapshots.settle()
        slot = layout.slot_dir(memory, 0, page.slot_steps().index(step))
        assert load_file(slot / "model.safetensors")["model.0"][:: 1 << 20].unique().tolist() == [step]
    snapshots.close()
    page.close()
    del held, model, snapshots
    torch.cuda.empty_cache()
