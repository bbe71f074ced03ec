"""Memory that is read into for the first time is asked for in huge pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.snapshots import save
from torch import nn

from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.huge_pages import use_huge_pages

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this kernel has no huge pages"
)
LARGE = 40 << 20
"""bytes: more than an allocator keeps for later, so that the memory is new"""


def asks_for_huge_pages(tensor: torch.Tensor) -> bool:
    """Whether the kernel was asked to back the middle of a tensor by huge pages (see proc(5), smaps)."""
    address = tensor.data_ptr() + tensor.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *others = line.split()
        if not first.endswith(":"):
            begin, end = (int(bound, 16) for bound in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            return "hg" in others
    raise LookupError("no mapping holds the tensor")


def test_only_a_large_tensor_of_this_processs_memory_is_asked_for() -> None:
    large, small = torch.empty(LARGE, dtype=torch.uint8), torch.empty(64 << 10, dtype=torch.uint8)
    assert not asks_for_huge_pages(large)
    for tensor in (large, small, torch.empty(LARGE, dtype=torch.uint8, device="meta")):
        use_huge_pages(tensor)
    assert asks_for_huge_pages(large)
    assert not asks_for_huge_pages(small)


def test_the_state_of_an_optimizer_is_read_into_huge_pages(memory: Path) -> None:
    def make() -> tuple[nn.Linear, torch.optim.Optimizer]:
        model = nn.Linear(LARGE >> 12, 1 << 10, bias=False)
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = make()
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    saved = save(RankState({"model": model, "optimizer": optimizer}, (), 0, 1), memory)
    fresh, begun = make()
    RankState({"model": fresh, "optimizer": begun}, (), 0, 1).restore(saved)
    moments = begun.state[fresh.weight]
    assert asks_for_huge_pages(moments["exp_avg"])
    assert asks_for_huge_pages(moments["exp_avg_sq"])
    assert torch.equal(moments["exp_avg_sq"], optimizer.state[model.weight]["exp_avg_sq"])
