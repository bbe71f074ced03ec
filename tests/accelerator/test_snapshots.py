"""Snapshots and restores on an accelerator whose kernels and copies are late: of the boundary, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ftlaunch_hooks.observe.replica_digests import DigestPlan
from ftlaunch_hooks.snapshots.private_room import PrivateRoom
from ftlaunch_hooks.state.collector import TensorItem
from tests.accelerator import checks, simulated
from tests.accelerator.checks import Check, Training, expect_step, snapshots_of

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
LARGE = 200_000
"""values of a tensor: more than are sampled of it at a boundary"""


@pytest.fixture(params=["with room", "without room"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the device has no room for a private copy, the script waits until its bytes are in the slot."""
    if request.param == "without room":
        monkeypatch.setattr(PrivateRoom, "has_room", lambda *_: False)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize(
    "check",
    [
        checks.assert_boundary_is_saved,
        checks.assert_second_device_is_saved,
        checks.assert_other_streams_are_saved,
    ],
)
def test_a_snapshot_is_of_its_boundary(memory: Path, check: Check) -> None:
    """What is taken out, one by one, in test_planted_bugs.py: the same for all tests of this file that run a check."""
    assert_holds(check, memory)


@pytest.mark.parametrize(
    "check",
    [
        checks.assert_next_step_is_not_saved,
        checks.assert_filled_memory_is_ordered,
        checks.assert_no_other_context,
    ],
)
def test_a_private_copy_is_brought_to_the_slot_beside_the_script(memory: Path, check: Check) -> None:
    assert_holds(check, memory)


@pytest.mark.parametrize(
    "check",
    [
        checks.assert_slots_are_pinned,
        checks.assert_what_moves_to_a_device_is_pinned,
        checks.assert_memory_is_pinned_until_it_is_written,
        checks.assert_a_named_slot_is_whole,
    ],
)
def test_slots_are_pinned_as_long_as_they_are_written_to(memory: Path, check: Check) -> None:
    assert_holds(check, memory)


@pytest.mark.parametrize(
    "check",
    [
        checks.assert_held_mirror_is_saved,
        checks.assert_cloned_mirror_is_saved,
        checks.assert_fetched_mirror_is_saved,
        checks.assert_mirror_of_second_device_is_saved,
    ],
)
def test_host_memory_is_copied_once_the_device_has_written_it(memory: Path, check: Check) -> None:
    assert_holds(check, memory)


@pytest.mark.parametrize(
    "check",
    [
        checks.assert_overlapped_copy_ends_before_the_step,
        checks.assert_changed_copy_is_dropped,
        checks.assert_copy_of_swapped_values_is_dropped,
        checks.assert_the_only_slot_is_not_risked,
    ],
)
def test_without_room_a_copy_goes_on_until_the_next_step(memory: Path, check: Check) -> None:
    assert_holds(check, memory)


def test_parameters_of_half_precision_in_a_common_memory_may_begin_between_two_words(memory: Path) -> None:
    common = torch.arange(2 * 1_000_001, dtype=torch.float16, device="cpu").to("sim:0")
    parameters = [nn.Parameter(common[:1_000_001]), nn.Parameter(common[1_000_001:2_000_001])]
    wanted = [parameter.detach().cpu() for parameter in parameters]
    model = nn.ParameterList(parameters)
    objects = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    with checks.only_buffers_fit(), snapshots_of(memory, objects) as snapshots:
        snapshots.snapshotter.capture(1)
        found = snapshots.content(1)
    assert torch.equal(found["model.0"], wanted[0])
    assert torch.equal(found["model.1"], wanted[1])


def test_samples_are_read_once_they_have_arrived(memory: Path) -> None:
    assert_holds(checks.assert_samples_arrive_whole, memory)


@pytest.mark.parametrize("check", [checks.assert_restored, checks.assert_files_are_brought_whole])
def test_what_was_saved_comes_back_to_its_device(memory: Path, check: Check) -> None:
    assert_holds(check, memory)


def assert_holds(check: Check, memory: Path) -> None:
    check(memory)


def test_digests_of_replicas_are_those_of_the_same_values_in_memory() -> None:
    values = torch.arange(100_000.0)

    def digests(tensor: torch.Tensor) -> list[int]:
        shape = tuple(tensor.shape)
        plan = DigestPlan([TensorItem("w", tensor, (0,), shape, owned=True, settled=True, replica="w")])
        return [plan.digest(index) for index in range(len(plan.parts))]

    assert len(digests(values)) > 1
    assert digests(values.to("sim:1")) == digests(values)


# --- what a device refuses ------------------------------------------------------------------------------------


def test_without_memory_for_a_private_copy_the_script_waits(memory: Path) -> None:
    """The allocator says that there is room, and then refuses."""
    training, twin = Training("sim:0", LARGE), Training("cpu", LARGE)
    with snapshots_of(memory, training.objects()) as snapshots:
        for step in range(1, 5):
            training.step(step)
            twin.step(step)
            simulated.limit_allocations(4 * LARGE - 1 if step == 3 else None)
            snapshots.snapshotter.capture(step)
            simulated.limit_allocations(None)
            assert snapshots.snapshotter.is_copying == (step == 2), "once it was refused, there is no further one"
            expect_step(snapshots, step, twin)


def test_private_copies_are_given_back(memory: Path) -> None:
    training = Training("sim:0")
    training.step(1)
    before = simulated.memory_allocated(0)
    with snapshots_of(memory, training.objects()) as snapshots:
        for step in range(1, 6):
            snapshots.snapshotter.capture(step)
            assert snapshots.snapshotter.is_copying == (step > 1)
            snapshots.snapshotter.settle()
            assert simulated.memory_allocated(0) == before


SLOT_OF_A_DEVICE = """
import sys
from pathlib import Path
import torch
from ftlaunch_hooks.snapshots.slot import Slot
from ftlaunch_hooks.state.collector import TensorItem
from tests.accelerator import simulated

with simulated.plugged_in():
    simulated.refuse_pinning()
    for number in (0, 1):
        slot = Slot(Path(sys.argv[1]), 0, number)
        slot.lay_out([TensorItem("weight", torch.ones(4, device="sim:0"), (0,), (4,), owned=True)])
        slot.close()
"""


def test_a_slot_that_cannot_be_pinned_is_said_once(memory: Path) -> None:
    """In a process of its own: once means once in a process."""
    ended = subprocess.run(
        [sys.executable, "-c", SLOT_OF_A_DEVICE, str(memory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "worker_hooks")))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr.count("cannot pin the memory of snapshots: ") == 1


def test_a_broken_device_fails_the_snapshot_and_leaves_the_one_before(memory: Path) -> None:
    """Without a check of the device's errors the slot would hold whatever was there, under a new step's number."""
    training, twin = Training("sim:0"), Training("cpu")
    with snapshots_of(memory, training.objects()) as snapshots:
        training.step(1)
        twin.step(1)
        snapshots.snapshotter.capture(1)
        simulated.break_device(0)
        with pytest.raises(torch.AcceleratorError, match="the simulated device is broken"):
            snapshots.snapshotter.capture(2)
        expect_step(snapshots, 1, twin)
        assert max(snapshots.page.slot_steps()) == 1
        snapshots.snapshotter.close()  # which a device that is broken does not hinder, though it unpins nothing
        assert simulated.pinned_bytes()
        simulated.unplug()
        simulated.plug_in()
