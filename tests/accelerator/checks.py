"""Checks of what the hooks promise on an asynchronous accelerator. Each raises Differs where a value is another one.

They hold with the hooks as they are. test_planted_bugs.py takes one protection out at a time and expects Differs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file
from torch import Tensor, nn

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, create_page, open_pages, page_path
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.observe.proof.device_staging import DeviceStaging
from ftlaunch_hooks.snapshots import overlapped_copies
from ftlaunch_hooks.snapshots.private_room import PrivateRoom
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.file_reads import SHARE_BYTES
from ftlaunch_hooks.storage.parallel_read import Filling
from tests.accelerator import simulated
from tests.support.snapshots import Box, equal, save

SIZE = 4000
"""values of a tensor"""
LATE_MS = 40
"""how late a write or a copy is, where it is to be late"""

OVERLAPPED = 400_000
"""values of a tensor that is large enough to be copied while training goes on"""

Check = Callable[[Path], None]


class Differs(AssertionError):
    """What was saved or restored has other values than it is to have."""


def compare(found: Any, wanted: Any, what: str) -> None:
    """Raise Differs unless both are equal bit for bit."""
    if not equal(found, wanted):
        raise Differs(f"{what} differs")


class Net(nn.Module):
    mean: Tensor

    def __init__(self, device: str, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, size, device="cpu").to(device))
        self.register_buffer("mean", torch.zeros(3, device=device))


class Training:
    """A model and an optimizer whose gradients are made by hand, so that a twin on the CPU has the same values."""

    def __init__(self, device: str, size: int = SIZE) -> None:
        self.model = Net(device, size)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        self.model.weight.grad = torch.zeros(size, device=device)

    def step(self, number: int) -> None:
        assert self.model.weight.grad is not None
        self.model.weight.grad.fill_(number)
        self.optimizer.step()

    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def values(self) -> dict[str, Tensor]:
        momentum = self.optimizer.state[self.model.weight]["momentum_buffer"]
        gradient = self.model.weight.grad
        assert gradient is not None
        return {
            "model.weight": self.model.weight.detach(),
            "model.mean": self.model.mean,
            "optimizer.state.model.weight.momentum_buffer": momentum,
            "grad.model.weight": gradient,
        }


class Snapshots:
    """The snapshots of one rank with some objects, in a directory on tmpfs."""

    def __init__(self, memory: Path, objects: dict[str, Any]) -> None:
        create_page(page_path(memory, 0))
        [self.page] = open_pages(memory, 1)
        self.page.begin(0, os.getpid(), 0)
        self.memory = memory
        self.snapshotter = Snapshotter(RankState(objects, (), 0, 1), self.page, [self.page], memory, 0, {})

    def content(self, step: int) -> dict[str, Tensor]:
        """Return all tensors that the snapshot of a step holds, once its slot says that it is whole."""
        self.snapshotter.settle()
        steps = self.page.slot_steps()
        if step not in steps:
            raise Differs(f"no slot holds step {step}, but {steps}")
        slot = layout.slot_dir(self.memory, 0, steps.index(step))
        return {
            key: value for group in layout.GROUPS for key, value in load_file(slot / f"{group}.safetensors").items()
        }

    def named(self) -> dict[int, dict[str, Tensor]]:
        """Return by step what the slots hold whose steps the page names at this moment, whole or not."""
        found = {}
        for number, step in enumerate(self.page.slot_steps()):
            if step != NONE:
                slot = layout.slot_dir(self.memory, 0, number)
                files = [(slot / f"{group}.safetensors").read_bytes() for group in layout.GROUPS]
                if self.page.slot_steps()[number] == step:  # it was named all the time
                    found[step] = {key: value for data in files for key, value in load(data).items()}
        return found

    def close(self) -> None:
        torch.accelerator.synchronize(0)  # a check may have left copies into the slots behind
        torch.accelerator.synchronize(1)
        self.snapshotter.close()
        self.page.close()


@contextmanager
def snapshots_of(memory: Path, objects: dict[str, Any]) -> Iterator[Snapshots]:
    snapshots = Snapshots(memory, objects)
    try:
        yield snapshots
    finally:
        snapshots.close()


def expect_step(snapshots: Snapshots, step: int, twin: Training) -> None:
    """Raise Differs unless the snapshot of a step holds the twin's values."""
    found = snapshots.content(step)
    for name, wanted in twin.values().items():
        compare(found[name], wanted, f"{name} in the snapshot of step {step}")


# --- snapshots of device memory -------------------------------------------------------------------------------


def assert_boundary_is_saved(memory: Path, device: str = "sim:0") -> None:
    """Kernels of the step before are still to write at the boundary, and those of the step after write soon."""
    training, twin = Training(device), Training("cpu")
    with snapshots_of(memory, training.objects()) as snapshots:
        for step in range(1, 5):
            simulated.set_delays(kernel_ms=LATE_MS if step > 2 else 0)
            training.step(step)
            twin.step(step)
            snapshots.snapshotter.capture(step)
            simulated.set_delays()
            with torch.no_grad():
                training.model.weight.add_(1)
            expect_step(snapshots, step, twin)
            with torch.no_grad():
                training.model.weight.copy_(twin.model.weight)


def assert_second_device_is_saved(memory: Path) -> None:
    """The current device is the first one, and all state lies on the second."""
    assert_boundary_is_saved(memory, "sim:1")


def assert_other_streams_are_saved(memory: Path) -> None:
    """A stream that the script has forked off writes before and after the boundary."""
    training, twin = Training("sim:0"), Training("cpu")
    training.step(1)
    twin.step(1)
    stream = torch.Stream("sim:0")
    with snapshots_of(memory, training.objects()) as snapshots, torch.no_grad():
        for step in range(1, 4):
            torch.accelerator.synchronize()
            simulated.set_delays(kernel_ms=LATE_MS)
            with stream:
                training.model.weight.fill_(step)
            simulated.set_delays()
            twin.model.weight.fill_(step)
            snapshots.snapshotter.capture(step)
            with stream:
                training.model.weight.fill_(-step)
            expect_step(snapshots, step, twin)


def assert_next_step_is_not_saved(memory: Path) -> None:
    """The bytes are still on their way to the slot when the next step overwrites the script's tensors."""
    training, twin = Training("sim:0"), Training("cpu")
    with snapshots_of(memory, training.objects()) as snapshots:
        for step in range(1, 5):
            training.step(step)
            twin.step(step)
            simulated.set_delays(copy_ms=LATE_MS, fetch_ms=LATE_MS)
            snapshots.snapshotter.capture(step)
            assert snapshots.snapshotter.is_copying == (step > 1), "the first snapshot has no private copy"
            simulated.set_delays()
            with torch.no_grad():
                training.model.weight.add_(1)
            expect_step(snapshots, step, twin)
            with torch.no_grad():
                training.model.weight.sub_(training.model.weight)
                training.model.weight.copy_(twin.model.weight)


def assert_filled_memory_is_ordered(memory: Path) -> None:
    """torch.use_deterministic_algorithms() fills the new memory of a private copy, late, on the script's stream."""
    training, twin = Training("sim:0"), Training("cpu")
    torch.use_deterministic_algorithms(True)
    try:
        with snapshots_of(memory, training.objects()) as snapshots:
            for step in range(1, 4):
                training.step(step)
                twin.step(step)
                torch.accelerator.synchronize()
                simulated.set_delays(kernel_ms=LATE_MS, fetch_ms=3 * LATE_MS)
                snapshots.snapshotter.capture(step)
                assert snapshots.snapshotter.is_copying == (step > 1)
                snapshots.snapshotter.settle()  # the thread that fetches must find the delays as they are
                simulated.set_delays()
                torch.accelerator.synchronize()
                expect_step(snapshots, step, twin)
    finally:
        torch.use_deterministic_algorithms(False)


def assert_no_other_context(memory: Path) -> None:
    """A rank whose device is the second one never uses the first, where other ranks need the memory."""
    torch.accelerator.set_device_index(1)
    training, twin = Training("sim:1"), Training("cpu")
    create_page(page_path(memory, 0))
    [page] = open_pages(memory, 1)
    page.begin(0, os.getpid(), 0)
    snapshotter = Snapshotter(RankState(training.objects(), (), 0, 1), page, [page], memory, 0, {})
    try:
        for step in range(1, 4):
            training.step(step)
            twin.step(step)
            snapshotter.capture(step)
            assert snapshotter.is_copying == (step > 1)
            snapshotter.settle()
    finally:
        snapshotter.close()
        page.close()
    if simulated.has_context(0):
        raise Differs("the first device has a context of this process")


# --- snapshots that are copied until the next step of an optimizer ---------------------------------------------


@contextmanager
def only_buffers_fit() -> Iterator[None]:
    """The device has no room for private copies, but for the buffers of overlapped ones; tensors have four pieces.

    It is torch's default device as well: what is to lie in this process's memory must say so.
    """
    with pytest.MonkeyPatch.context() as patch, torch.device("sim:0"):
        patch.setattr(PrivateRoom, "has_room", lambda *_: False)
        patch.setattr(PrivateRoom, "has_room_for_buffers", lambda *_: True)
        patch.setattr(overlapped_copies, "PIECE_WORDS", OVERLAPPED // 4)
        yield


def assert_overlapped_copy_ends_before_the_step(memory: Path) -> None:
    """The optimizer's next step comes while pieces are late: it waits for them, and the snapshot is kept."""
    training, twin = Training("sim:0", OVERLAPPED), Training("cpu", OVERLAPPED)
    training.step(1)
    twin.step(1)
    with only_buffers_fit(), snapshots_of(memory, training.objects()) as snapshots:
        for step in range(1, 4):
            simulated.set_delays(kernel_ms=LATE_MS, copy_ms=LATE_MS, fetch_ms=LATE_MS)
            snapshots.snapshotter.capture(step)
            simulated.set_delays()
            assert snapshots.snapshotter.is_copying
            training.step(step + 1)
            snapshots.snapshotter.settle()
            if step not in snapshots.page.slot_steps():
                raise Differs(f"the snapshot of step {step} is dropped")
            expect_step(snapshots, step, twin)
            twin.step(step + 1)


def assert_changed_copy_is_dropped(memory: Path) -> None:
    """Something else than the optimizer's step changes a parameter while its pieces are late."""

    def change(weight: Tensor) -> None:
        weight.add_(1)

    assert_dropped(memory, change)


def assert_copy_of_swapped_values_is_dropped(memory: Path) -> None:
    """A parameter has other values while its pieces are read, and has its own again in the end."""

    def swap(weight: Tensor) -> None:
        before = weight.clone()
        weight.fill_(7)
        simulated.set_delays(copy_ms=12 * LATE_MS)  # after four pieces were read
        weight.copy_(before)
        simulated.set_delays()

    assert_dropped(memory, swap)


def assert_dropped(memory: Path, change: Callable[[Tensor], None]) -> None:
    """change: changes a parameter after the boundary. The next snapshot is kept, as the parameter is known by then."""
    training, twin = Training("sim:0", OVERLAPPED), Training("cpu", OVERLAPPED)
    with only_buffers_fit(), snapshots_of(memory, training.objects()) as snapshots:
        for step in (1, 2):
            training.step(step)
            twin.step(step)
            before = training.model.weight.detach().clone()
            torch.accelerator.synchronize()
            snapshots.snapshotter.fit(step)
            simulated.set_delays(kernel_ms=LATE_MS, copy_ms=LATE_MS)
            assert snapshots.snapshotter.capture(step)
            simulated.set_delays()
            assert snapshots.snapshotter.is_copying
            with torch.no_grad():
                change(training.model.weight)
            snapshots.snapshotter.settle()
            if step in snapshots.page.slot_steps():
                expect_step(snapshots, step, twin)
            is_kept = step in snapshots.page.slot_steps()
            assert is_kept == (step == 2), "the first is dropped, as the parameter is not known to change"
            assert snapshots.snapshotter.budget.progress.any_gave_up() == (not is_kept), "other ranks would wait for it"
            torch.accelerator.synchronize()
            with torch.no_grad():
                training.model.weight.copy_(before)


def assert_the_only_slot_is_not_risked(memory: Path) -> None:
    """A snapshot that may be dropped must not overwrite the only one that there is."""
    training, twin = Training("sim:0", OVERLAPPED), Training("cpu", OVERLAPPED)
    with only_buffers_fit(), snapshots_of(memory, training.objects()) as snapshots:
        snapshots.snapshotter.budget.slots = 1
        for step in (1, 2):
            training.step(step)
            twin.step(step)
            torch.accelerator.synchronize()
            assert snapshots.snapshotter.capture(step)
            if snapshots.snapshotter.is_copying:
                raise Differs("what overwrites the only snapshot may be dropped")
            expect_step(snapshots, step, twin)


# --- memory of snapshots, which is pinned ---------------------------------------------------------------------


def assert_slots_are_pinned(memory: Path) -> None:
    """The memory of every slot is pinned while it is in use, and not for longer."""
    training = Training("sim:0")
    before = simulated.pinned_bytes()
    with snapshots_of(memory, training.objects()) as snapshots:
        for step in range(1, 4):
            training.step(step)
            snapshots.snapshotter.capture(step)
            snapshots.snapshotter.settle()
            expect_pinned(snapshots, step)
    compare(simulated.pinned_bytes(), before, "what is pinned after the slots were closed")


def expect_pinned(snapshots: Snapshots, step: int) -> None:
    slot = snapshots.snapshotter.slots[snapshots.page.slot_steps().index(step)]
    places = [place for item, place in slot.on_devices if item.tensor.numel()]
    assert places, "tensors on a device are saved"
    compare([simulated.is_pinned(place) for place in places], [True] * len(places), "whether a slot's memory is pinned")


class Moving:
    """State that is brought to a device after the first snapshots, as an optimizer's that is loaded from a file."""

    def __init__(self) -> None:
        self.held = torch.zeros(SIZE, device="cpu")

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


def assert_what_moves_to_a_device_is_pinned(memory: Path) -> None:
    moving = Moving()
    with snapshots_of(memory, {"moving": moving}) as snapshots:
        for step in range(1, 7):
            if step == 4:
                moving.held = moving.held.to("sim:0")
            snapshots.snapshotter.capture(step)
            if step >= 4:
                snapshots.snapshotter.settle()
                expect_pinned(snapshots, step)


def assert_memory_is_pinned_until_it_is_written(memory: Path) -> None:
    """The slots are closed while a copy to one of them is under way."""
    training = Training("sim:0")
    with snapshots_of(memory, training.objects()) as snapshots:
        for step in range(1, 4):
            training.step(step)
            simulated.set_delays(fetch_ms=LATE_MS if step == 3 else 0)
            snapshots.snapshotter.capture(step)
        stream, given_up = device_port.own_stream(torch.device("sim:0")), time.monotonic() + LATE_MS / 1000
        while stream.query() and time.monotonic() < given_up:
            pass  # the thread that copies has not begun
        snapshots.snapshotter.close()
        compare(simulated.torn_unpins(), 0, "how much memory was unpinned while a device wrote to it")


def assert_a_named_slot_is_whole(memory: Path) -> None:
    """Each boundary comes while the copy of the one before is under way. What the page names is whole all the time."""
    training, twin, wanted = Training("sim:0"), Training("cpu"), {}
    with snapshots_of(memory, training.objects()) as snapshots:
        for step in range(1, 7):
            training.step(step)
            twin.step(step)
            wanted[step] = {name: value.clone() for name, value in twin.values().items()}
            simulated.set_delays(fetch_ms=LATE_MS)
            snapshots.snapshotter.capture(step)
            half = time.monotonic() + 2 * LATE_MS / 1000  # of the time that the four copies of a snapshot take
            while time.monotonic() < half:
                for named, found in snapshots.named().items():
                    for name, value in wanted[named].items():
                        compare(found[name], value, f"{name} in the snapshot of step {named}")
        expect_step(snapshots, 6, twin)


# --- snapshots of host memory that a device writes to ---------------------------------------------------------


class Mirror:
    """State in pinned memory that the device writes to by itself, as an optimizer has that offloads its state."""

    def __init__(self, device: str) -> None:
        self.on_device = torch.zeros(SIZE, device=device)
        self.held = torch.zeros(SIZE, pin_memory=True)

    def queue(self, value: int) -> None:
        """The copy is made some time after this has returned."""
        self.on_device.fill_(value)
        self.held.copy_(self.on_device, non_blocking=True)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


class Held(Mirror):
    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}


class Cloned(Mirror):
    """What is read inside state_dict() must have been written before."""

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held.clone()}


class Fetched(Mirror):
    """state_dict() itself queues the copy that it returns."""

    def queue(self, value: int) -> None:
        self.on_device.fill_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.on_device.to("cpu", non_blocking=True)}


def assert_mirror_is_saved(memory: Path, kind: type[Mirror], device: str = "sim:0") -> None:
    """No attached tensor lies on a device, and copies to the attached one are queued at the boundary."""
    mirror = kind(device)
    with snapshots_of(memory, {"mirror": mirror}) as snapshots:
        for step in range(1, 4):
            simulated.set_delays(fetch_ms=LATE_MS)
            mirror.queue(step)
            snapshots.snapshotter.capture(step)
            found = snapshots.content(step)["mirror.held"]
            torch.accelerator.synchronize(torch.device(device))
            compare(found, torch.full((SIZE,), float(step)), f"the mirror in the snapshot of step {step}")


def assert_held_mirror_is_saved(memory: Path) -> None:
    assert_mirror_is_saved(memory, Held)


def assert_cloned_mirror_is_saved(memory: Path) -> None:
    assert_mirror_is_saved(memory, Cloned)


def assert_fetched_mirror_is_saved(memory: Path) -> None:
    assert_mirror_is_saved(memory, Fetched)


def assert_mirror_of_second_device_is_saved(memory: Path) -> None:
    """The current device is the first one, and nothing is attached that lies on the second."""
    assert_mirror_is_saved(memory, Held, "sim:1")


# --- samples that a device sends at each boundary -------------------------------------------------------------


def assert_samples_arrive_whole(memory: Path) -> None:
    """Samples of two devices are read once their copies have ended, whether they are waited for or not."""
    devices = [torch.device("sim", number) for number in range(simulated.DEVICES)]
    staging = DeviceStaging.of_devices(devices, 3 * SIZE // 4)
    places = [devices[0], devices[1], devices[1]]  # the second device is ready later
    sources = [torch.zeros(SIZE // 4, dtype=torch.uint8, device=device) for device in places]
    simulated.set_delays(fetch_ms=LATE_MS)
    read = []
    for step in range(1, 9):
        if (buffer := staging.acquire_buffer()) is not None:
            for source, samples in zip(sources, buffer.samples.chunk(3), strict=True):
                source.fill_(step)
                samples.copy_(source, non_blocking=True)
            staging.send(step, buffer, has_loss=False)
        read += [(step, bytes(buffer.memory)) for step, buffer, _ in staging.arrivals(must_wait=step % 4 == 0)]
    for device in devices:
        torch.accelerator.synchronize(device)
    compare(read, [(step, bytes([step]) * (3 * SIZE // 4)) for step in range(1, 9)], "samples")


# --- restore --------------------------------------------------------------------------------------------------


def assert_restored(memory: Path) -> None:
    """Values, devices and random numbers of two devices come back, into memory that the script still writes to."""

    def make() -> tuple[Training, Training, Box, RankState]:
        first, second, box = Training("sim:0"), Training("sim:1"), Box(held=torch.arange(9.0, device="sim:1"))
        objects = {"model": first.model, "optimizer": first.optimizer, "box": box}
        objects |= {"model2": second.model, "optimizer2": second.optimizer}
        return first, second, box, RankState(objects, (), 0, 1)

    def draw() -> list[list[float]]:
        return [torch.rand(3, device=device).tolist() for device in ("sim:0", "sim:1", "cpu")]

    torch.manual_seed(3)
    first, second, box, state = make()
    state.restore_rng()
    first.step(1)
    second.step(2)
    draw()
    saved = save(state, memory)
    wanted = draw()
    again, again2, emptied, resumed = make()
    torch.manual_seed(99)
    again.step(5)
    again2.step(5)
    emptied.content["held"].zero_()
    simulated.set_delays(kernel_ms=LATE_MS, copy_ms=LATE_MS)
    with torch.no_grad():
        again.model.weight.zero_()  # the kernels are still to write when the values are put back
        again2.model.weight.zero_()
    resumed.restore(saved)
    resumed.restore_rng()
    simulated.set_delays()
    pairs = [(first.values(), again.values()), (second.values(), again2.values()), (box.content, emptied.content)]
    for before, after in pairs:
        for name, value in after.items():
            compare(str(value.device), str(before[name].device), f"the device of {name}")
            compare(value.cpu(), before[name].cpu(), name)
    compare(draw(), wanted, "random numbers")


def assert_files_are_brought_whole(memory: Path) -> None:
    """Files come through pinned memory, which is used again and again, into memory that the script still writes to."""
    count = 5 * SHARE_BYTES // 2  # of each tensor, in bytes: more shares than there is pinned memory for
    contents = [torch.randint(0, 256, (count,), dtype=torch.uint8) for _ in range(4)]
    targets = [torch.ones(count, dtype=torch.uint8, device=f"sim:{number % 2}") for number in range(len(contents))]
    filling = Filling()
    simulated.set_delays(kernel_ms=10 * LATE_MS, copy_ms=LATE_MS)
    for number, (content, target) in enumerate(zip(contents, targets, strict=True)):
        path = memory / f"file{number % 3}"
        offset = path.stat().st_size if path.exists() else 0
        with path.open("ab") as file:
            file.write(content.numpy().tobytes())
        target.zero_()  # the kernel is still to write when the file's bytes arrive
        filling.add(path, offset, target)
    filling.run()
    simulated.set_delays()
    for content, target in zip(contents, targets, strict=True):
        compare(target.cpu(), content, "what was read")
