"""What the port makes of devices that tell less than CUDA does, or are not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftlaunch_hooks.devices import device_port


def refuse(*_: Any) -> int:
    raise RuntimeError("this allocator keeps no figures")


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An accelerator of four devices, of which this process holds memory of the fourth."""
    made = SimpleNamespace(
        current_accelerator=lambda: torch.device("xpu"),
        is_available=lambda: True,
        device_count=lambda: 4,
        current_device_index=lambda: 1,
        memory_reserved=lambda number: 64 * (number == 3),
        memory_stats=refuse,
    )
    monkeypatch.setattr(torch, "accelerator", made)
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(is_initialized=lambda: True, mem_get_info=lambda _: (1, 2)))
    return made


def test_devices_that_are_merely_seen_are_left_alone(accelerator: SimpleNamespace) -> None:
    assert [device.index for device in device_port.devices_in_use()] == [1, 3]


def test_where_the_allocator_tells_nothing_all_devices_are_waited_for(accelerator: SimpleNamespace) -> None:
    """Taken out: the first snapshot ends the training, or a device is not waited for."""
    accelerator.memory_reserved = refuse
    assert [device.index for device in device_port.devices_in_use()] == [1, 0, 2, 3]
    assert device_port.memory_of(torch.device("xpu", 1)) is None


def test_a_backend_without_a_module_of_its_own_is_waited_for(
    accelerator: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "xpu", None)
    assert device_port.find_accelerator() == torch.device("xpu")
    accelerator.is_available = lambda: False
    assert device_port.find_accelerator() is None


@pytest.mark.parametrize(
    ("name", "place"),
    [("cpu", "cpu"), ("meta", "meta"), ("xpu", "xpu"), ("xpu:3", "xpu:3"), ("xpu:4", "xpu:1"), ("cuda:0", "cpu")],
)
def test_the_nearest_device_stands_for_one_that_is_missing(accelerator: SimpleNamespace, name: str, place: str) -> None:
    assert str(device_port.nearest_device(name)) == place


def test_without_any_device_the_cpu_stands_for_all(accelerator: SimpleNamespace) -> None:
    accelerator.is_available = lambda: False
    assert str(device_port.nearest_device("xpu:1")) == "cpu"
    accelerator.current_accelerator = lambda: None
    assert str(device_port.nearest_device("xpu")) == "cpu"
    assert device_port.random_states() is None


def test_what_keeps_kernels_from_a_fixed_order_is_named(
    accelerator: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "use_deterministic_algorithms(True) was not called" in device_port.find_undetermined_order()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not device_port.find_undetermined_order()
    monkeypatch.setattr(accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert "cudnn.benchmark is on" in device_port.find_undetermined_order()
    accelerator.current_accelerator = lambda: None
    assert not device_port.find_undetermined_order()
