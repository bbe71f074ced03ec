"""A rank that is to leave gives its groups up and waits for its devices, but for no longer than it may."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import distributed

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.job.parking import park

DEVICE = torch.device("cpu")


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that were waited for; a device is in use."""
    devices: list[torch.device] = []
    monkeypatch.setattr(device_port, "find_accelerator", lambda: DEVICE)
    monkeypatch.setattr(device_port, "devices_with_memory", lambda: [DEVICE])
    monkeypatch.setattr(torch.accelerator, "synchronize", devices.append)
    return devices


def test_groups_are_given_up_and_devices_waited_for(waited: list[torch.device], tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    park()
    assert not distributed.is_initialized()
    assert waited == [DEVICE]


def test_a_device_that_never_ends_its_work_holds_nobody_up(
    waited: list[torch.device], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Taken out (the deadline): the rank waits for ever, and is killed."""
    ended = threading.Event()
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: ended.wait())
    park(0.05)
    ended.set()
    assert "devices have not done what was queued within 0.05 s" in "".join(capfd.readouterr())


def test_a_broken_device_is_told_of(
    waited: list[torch.device], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: torch.device) -> None:
        raise RuntimeError("an illegal memory access was encountered\nmore")

    monkeypatch.setattr(torch.accelerator, "synchronize", fail)
    park()
    said = "".join(capfd.readouterr())
    assert "ends with work under way on its devices: an illegal memory access was encountered" in said
    assert "more" not in said


def test_without_an_accelerator_nothing_is_given_up(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    park()
    assert distributed.is_initialized()
    distributed.destroy_process_group()
