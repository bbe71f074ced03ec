"""State that lies on an accelerator besides tensors of a state_dict: random numbers, and buffers that are left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ftlaunch_hooks.passes.own_numbers import OwnNumbers
from ftlaunch_hooks.state.buffers import SMALL
from ftlaunch_hooks.state.random_numbers import dtensor_numbers, shared
from ftlaunch_hooks.state.state import RankState
from tests.accelerator import simulated
from tests.support.snapshots import equal, save

pytestmark = pytest.mark.long
LARGE = SMALL // 4 + 1


class Queue(nn.Module):
    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("keys", values, persistent=False)


@pytest.mark.parametrize("size", [LARGE, (1 << 20) + 3])
@pytest.mark.parametrize("change", ["one value", "two places"])
def test_a_large_buffer_that_is_written_through_data_is_saved(memory: Path, size: int, change: str) -> None:
    """No version tells of it. The second size is more than is digested at a time."""
    queue, other = (Queue(torch.arange(size, dtype=torch.float32).to("sim")) for _ in range(2))
    state = RankState({"queue": queue}, (), 0, 1)
    assert "queue.keys:nonpersistent" not in [item.key for item in state.collect().items]
    assert "queue.keys:nonpersistent" not in [item.key for item in state.collect().items]
    if change == "one value":
        queue.keys.data[-1] += 1
    else:
        queue.keys.data[2:4] = queue.keys.data[2:4].flip(0)
    RankState({"queue": other}, (), 0, 1).restore(save(state, memory))
    assert equal(other.keys, queue.keys)


def draw() -> float:
    return torch.rand((), device="sim").item()


def test_numbers_of_its_own_leave_those_of_the_device_alone() -> None:
    draw()  # the device is in use
    before = simulated.get_rng_state()
    numbers = OwnNumbers(3)
    first = [numbers.run(draw) for _ in range(2)]
    assert torch.equal(simulated.get_rng_state(), before)
    draw()
    assert [OwnNumbers(3).run(draw), *first[1:]] == first, "whatever training has drawn"
    place, then = numbers.state(), numbers.run(draw)
    other = OwnNumbers(4)
    other.go_to(place)
    assert other.run(draw) == then


def test_a_draw_on_the_device_is_seen_and_taken_back() -> None:
    draw()
    before = shared.read_raw()
    assert shared.are_alike(before, shared.read_raw())
    number = draw()
    assert not shared.are_alike(before, shared.read_raw())
    shared.put_back_raw(before)
    assert draw() == number
    shared.put_back(shared.to_save(before))
    assert draw() == number


def test_a_process_in_which_dtensor_has_begun_too_early_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    draw()
    dtensor_numbers.begin_as_saved(had_begun=False)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr("torch.distributed.tensor._random._rng_tracker", object())
    dtensor_numbers.begin_as_saved(had_begun=True)
    assert capfd.readouterr().err == ""
    dtensor_numbers.begin_as_saved(had_begun=False)
    assert "DTensor has drawn random numbers in this process before training began" in capfd.readouterr().err


def test_without_a_process_group_dtensor_s_numbers_are_said_to_differ(capfd: pytest.CaptureFixture[str]) -> None:
    draw()
    dtensor_numbers.begin_as_saved(had_begun=True)
    assert "call torch.distributed.init_process_group() before attach()" in capfd.readouterr().err
