"""Takes out one wait, one order, or one copy of the hooks at a time: a check of checks.py must fail.

This shows that the checks would notice. PLANTED is the whole list of what is taken out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.devices.device_port import PinnedMap
from ftlaunch_hooks.observe.proof.device_staging import DeviceStaging
from ftlaunch_hooks.snapshots import snapshotter
from ftlaunch_hooks.snapshots.copies import Copies
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.overlapped_copies import DeviceBuffers, OverlappedCopies, Pair
from ftlaunch_hooks.snapshots.private_room import PrivateRoom
from ftlaunch_hooks.snapshots.slot_file import SlotFile
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.random_numbers import accelerators
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.reading import Lookup
from tests.accelerator import checks, simulated
from tests.accelerator.checks import Check, Differs

pytestmark = pytest.mark.long

Plant = Callable[[pytest.MonkeyPatch], None]


# --- waits for devices ----------------------------------------------------------------------------------------


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_port, "wait_for_devices", lambda: None)


def only_the_wait_is_left(patch: pytest.MonkeyPatch) -> None:
    """Take out what else waits for the script's current stream: samples of values are read, copies are ordered."""
    patch.setattr(RankState, "sample", lambda self, collected: None)
    patch.setattr(PrivateRoom, "has_room", lambda *_: False)


def no_wait_at_all(patch: pytest.MonkeyPatch) -> None:
    only_the_wait_is_left(patch)
    no_wait(patch)


def no_wait_before_state_dict(patch: pytest.MonkeyPatch) -> None:
    """The waits of a boundary after state_dict(), and before the bytes are copied, stay."""
    _skip_waits(patch, skipped=(0,))


def no_wait_after_state_dict(patch: pytest.MonkeyPatch) -> None:
    """The first wait of a boundary, before state_dict(), stays."""
    _skip_waits(patch, skipped=(1, 2))


def _skip_waits(patch: pytest.MonkeyPatch, skipped: Collection[int]) -> None:
    wait, capture = device_port.wait_for_devices, Snapshotter.capture
    waits = 0

    def count(*given: Any) -> bool:
        nonlocal waits
        waits = 0
        return capture(*given)

    def wait_or_not() -> None:
        nonlocal waits
        if waits not in skipped:
            wait()
        waits += 1

    patch.setattr(Snapshotter, "capture", count)
    patch.setattr(device_port, "wait_for_devices", wait_or_not)


def only_the_current_device(patch: pytest.MonkeyPatch) -> None:
    in_use = device_port.devices_in_use
    patch.setattr(device_port, "devices_in_use", lambda: in_use()[:1])


def only_the_current_device_at_all(patch: pytest.MonkeyPatch) -> None:
    only_the_wait_is_left(patch)
    only_the_current_device(patch)


def only_other_devices(patch: pytest.MonkeyPatch) -> None:
    in_use = device_port.devices_in_use
    patch.setattr(device_port, "devices_in_use", lambda: in_use()[1:])


def only_the_current_stream(patch: pytest.MonkeyPatch) -> None:
    def wait() -> None:
        for device in device_port.devices_in_use():
            torch.accelerator.current_stream(device).synchronize()

    patch.setattr(device_port, "wait_for_devices", wait)


# --- the hooks' own stream ------------------------------------------------------------------------------------


class NeverWaits(torch.Stream):
    def synchronize(self) -> None:
        return


def no_wait_for_the_own_stream(patch: pytest.MonkeyPatch) -> None:
    streams: dict[torch.device, torch.Stream] = {}
    patch.setattr(device_port, "own_stream", lambda device: streams.setdefault(device, NeverWaits(device)))


def no_order_after_the_script(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_port, "order_after_script", lambda device: None)


def unprepared_thread(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(device_port, "prepare_thread", lambda device: None)


# --- copies ---------------------------------------------------------------------------------------------------


def no_private_copy(patch: pytest.MonkeyPatch) -> None:
    """The script's own tensors are read while training goes on."""
    patch.setattr(Copies, "copy_on_devices", lambda self: Copies(zip(self.sources, self.targets, strict=True)))


def copies_on_the_script_s_memory(patch: pytest.MonkeyPatch) -> None:
    """The thread that copies beside the training does nothing, and says that it has."""
    run = Copies.run
    patch.setattr(Copies, "run", lambda self: run(self) if all(target.is_cpu for target in self.targets) else None)


class HasHappened(torch.Event):
    """Says that it has happened, whether it has or not; a wait for it waits."""

    def query(self) -> bool:
        return True


class WaitsForNothing(torch.Event):
    """A wait for it ends at once; a question is answered truly."""

    def synchronize(self) -> None:
        return


def staged_samples_count_as_arrived(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "Event", HasHappened)


def events_wait_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "Event", WaitsForNothing)


def samples_of_the_current_device_only(patch: pytest.MonkeyPatch) -> None:
    of_devices = DeviceStaging.of_devices
    patch.setattr(DeviceStaging, "of_devices", lambda devices, size: of_devices(devices[:1], size))


# --- memory of snapshots --------------------------------------------------------------------------------------


def no_memory_is_pinned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotFile, "pin", lambda self: None)


def pinned_memory_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PinnedMap, "close", lambda self: None)


def only_what_lay_on_a_device_from_the_beginning_is_pinned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotFile, "pin_for", lambda self, writer: None)


def slots_are_closed_during_a_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshotter, "close", lambda self: self.slots.close())


def no_wait_for_the_copy_before(patch: pytest.MonkeyPatch) -> None:
    """A boundary waits neither for the copy nor, which would do as well, for all devices."""
    no_wait(patch)
    capture = Snapshotter.capture

    def capture_at_once(self: Snapshotter, *given: Any) -> bool:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(self, "settle", lambda: None)
            return capture(self, *given)

    patch.setattr(Snapshotter, "capture", capture_at_once)


# --- copies until the next step of an optimizer ---------------------------------------------------------------


def no_wait_before_the_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshotter, "register_optimizer_step_pre_hook", lambda _: RemovableHandle(OrderedDict()))


def no_fingerprint_is_compared(patch: pytest.MonkeyPatch) -> None:
    run = OverlappedCopies.run

    def run_and_say_nothing(self: OverlappedCopies) -> set[str]:
        run(self)
        return set()

    patch.setattr(OverlappedCopies, "run", run_and_say_nothing)


def fingerprints_are_of_the_script_s_memory(patch: pytest.MonkeyPatch) -> None:
    """They are compared with those of what the script has in the end, not of what was copied."""
    begin, run = OverlappedCopies.__init__, OverlappedCopies.run
    begun: dict[OverlappedCopies, tuple[list[Pair], dict[torch.device, DeviceBuffers]]] = {}

    def begin_and_note(
        self: OverlappedCopies, pairs: Iterable[Pair], buffers: dict[torch.device, DeviceBuffers]
    ) -> None:
        begun[self] = list(pairs), buffers
        begin(self, *begun[self])

    def run_and_look_again(self: OverlappedCopies) -> set[str]:
        run(self)
        torch.accelerator.synchronize()
        return set() if OverlappedCopies(*begun[self]).fingerprints == self.fingerprints else {"something"}

    patch.setattr(OverlappedCopies, "__init__", begin_and_note)
    patch.setattr(OverlappedCopies, "run", run_and_look_again)


def the_only_slot_counts_as_spare(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryBudget, "has_spare_slot", True)


# --- restore --------------------------------------------------------------------------------------------------


def random_numbers_begin_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(accelerators, "put_back", lambda saved: None)


def only_the_current_device_s_random_numbers(patch: pytest.MonkeyPatch) -> None:
    """As for a device whose module has no get_rng_state_all()."""
    patch.delattr(simulated, "get_rng_state_all")
    patch.delattr(simulated, "set_rng_state_all")


def no_restore(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RankState, "restore", lambda self, saved: None)


def device_numbers_are_lost(patch: pytest.MonkeyPatch) -> None:
    allocate = Lookup.allocate

    def on_current_device(self: Lookup, key: str, device: str, like: torch.Tensor | None = None) -> torch.Tensor:
        return allocate(self, key, device.partition(":")[0], None)

    patch.setattr(Lookup, "allocate", on_current_device)


@dataclass(frozen=True)
class PlantedBug:
    plant: Plant
    check: Check


PLANTED = [
    PlantedBug(no_wait, checks.assert_other_streams_are_saved),
    PlantedBug(no_wait, checks.assert_held_mirror_is_saved),
    PlantedBug(no_wait_at_all, checks.assert_boundary_is_saved),
    PlantedBug(no_wait_before_state_dict, checks.assert_cloned_mirror_is_saved),
    PlantedBug(no_wait_after_state_dict, checks.assert_fetched_mirror_is_saved),
    PlantedBug(only_the_current_device_at_all, checks.assert_second_device_is_saved),
    PlantedBug(only_the_current_device, checks.assert_mirror_of_second_device_is_saved),
    PlantedBug(only_other_devices, checks.assert_held_mirror_is_saved),
    PlantedBug(only_the_current_stream, checks.assert_other_streams_are_saved),
    PlantedBug(no_wait_for_the_own_stream, checks.assert_next_step_is_not_saved),
    PlantedBug(no_order_after_the_script, checks.assert_filled_memory_is_ordered),
    PlantedBug(unprepared_thread, checks.assert_no_other_context),
    PlantedBug(no_private_copy, checks.assert_next_step_is_not_saved),
    PlantedBug(copies_on_the_script_s_memory, checks.assert_next_step_is_not_saved),
    PlantedBug(staged_samples_count_as_arrived, checks.assert_samples_arrive_whole),
    PlantedBug(events_wait_for_nothing, checks.assert_samples_arrive_whole),
    PlantedBug(samples_of_the_current_device_only, checks.assert_samples_arrive_whole),
    PlantedBug(no_wait_before_the_step, checks.assert_overlapped_copy_ends_before_the_step),
    PlantedBug(no_fingerprint_is_compared, checks.assert_changed_copy_is_dropped),
    PlantedBug(no_wait_for_the_own_stream, checks.assert_overlapped_copy_ends_before_the_step),
    PlantedBug(fingerprints_are_of_the_script_s_memory, checks.assert_copy_of_swapped_values_is_dropped),
    PlantedBug(the_only_slot_counts_as_spare, checks.assert_the_only_slot_is_not_risked),
    PlantedBug(no_memory_is_pinned, checks.assert_slots_are_pinned),
    PlantedBug(pinned_memory_is_not_given_back, checks.assert_slots_are_pinned),
    PlantedBug(only_what_lay_on_a_device_from_the_beginning_is_pinned, checks.assert_what_moves_to_a_device_is_pinned),
    PlantedBug(slots_are_closed_during_a_copy, checks.assert_memory_is_pinned_until_it_is_written),
    PlantedBug(no_wait_for_the_own_stream, checks.assert_memory_is_pinned_until_it_is_written),
    PlantedBug(no_wait_for_the_copy_before, checks.assert_a_named_slot_is_whole),
    PlantedBug(no_wait, checks.assert_files_are_brought_whole),
    PlantedBug(no_wait_for_the_own_stream, checks.assert_files_are_brought_whole),
    PlantedBug(events_wait_for_nothing, checks.assert_files_are_brought_whole),
    PlantedBug(no_restore, checks.assert_restored),
    PlantedBug(random_numbers_begin_anew, checks.assert_restored),
    PlantedBug(only_the_current_device_s_random_numbers, checks.assert_restored),
    PlantedBug(device_numbers_are_lost, checks.assert_restored),
]


@pytest.mark.parametrize(
    "bug", PLANTED, ids=lambda bug: f"{bug.plant.__name__}-{bug.check.__name__.removeprefix('assert_')}"
)
def test_a_planted_bug_is_found(bug: PlantedBug, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is late must still be under way when the script goes on: on a busy machine that takes a longer delay."""
    bug.plant(monkeypatch)
    for late_ms in (checks.LATE_MS, 5 * checks.LATE_MS, 25 * checks.LATE_MS):
        monkeypatch.setattr(checks, "LATE_MS", late_ms)
        (directory := memory / str(late_ms)).mkdir()
        try:
            bug.check(directory)
        except Differs:
            return
    pytest.fail("no value differs")


def test_each_check_finds_a_planted_bug() -> None:
    """A check that no bug fails may check nothing."""
    held = {check for name, check in vars(checks).items() if name.startswith("assert_")} - {
        checks.assert_mirror_is_saved,
        checks.assert_dropped,
    }
    assert held == {bug.check for bug in PLANTED}


def test_the_wait_alone_is_enough(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bugs with `at_all` take out besides fails no check by itself."""
    only_the_wait_is_left(monkeypatch)
    checks.assert_second_device_is_saved(memory)
