"""The device module of the simulated accelerator, `torch.sim`: two devices, asynchronous, whose timing a test sets.

`register()` makes the devices known to torch under the type `sim`, which lasts as long as the process. They are there
between `plug_in()` and `unplug()`. No backward may run in a process that has other tests: torch then starts a thread
for each device, and a fork of the process cannot compute gradients any more.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.utils.backend_registration import rename_privateuse1_backend

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.devices.device_port import PinError
from tests.accelerator import build

TYPE = "sim"
DEVICES = 2
BACKEND = "simulated"
"""the backend of torch.distributed for tensors of the devices: `init_process_group("cpu:gloo,sim:simulated")`"""

Event = torch.Event
Stream = torch.Stream

_driver: Any = None


def register() -> None:
    """Build the extension where it was not built before, and register it with torch. Once is enough."""
    global _driver  # noqa: PLW0603 - torch knows one such backend, for as long as the process lives
    if _driver is not None:
        return
    _driver = build.load()
    rename_privateuse1_backend(TYPE)
    torch._register_device_module(TYPE, sys.modules[__name__])  # type: ignore[no-untyped-call]
    distributed.Backend.register_backend(BACKEND, _make_collectives, devices=[TYPE])
    device_port.host_pinners[TYPE] = _Pinner()
    atexit.register(_driver.unplug)


class _Pinner:
    """Implements HostPinner."""

    def pin(self, address: int, size: int) -> None:
        try:
            _driver.pin(address, size)
        except RuntimeError as error:
            raise PinError(str(error).splitlines()[0]) from error

    def unpin(self, address: int) -> None:
        _driver.unpin(address)


def _make_collectives(store: distributed.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Return a backend of one group. Gloo carries the bytes, in the thread of a stream that only the group uses."""
    return _driver.make_collectives(distributed.ProcessGroupGloo(store, rank, size, timeout=timeout))


# --- what a test sets -----------------------------------------------------------------------------------------


def plug_in() -> None:
    """Make the devices available."""
    _driver.plug_in()


def unplug() -> None:
    """Wait for what is queued, end all threads of the devices, forget their memory, and set all knobs back."""
    _driver.unplug()


@contextmanager
def plugged_in() -> Iterator[None]:
    """The devices are available inside."""
    register()
    plug_in()
    try:
        yield
    finally:
        unplug()


def set_delays(*, kernel_ms: int = 0, copy_ms: int = 0, fetch_ms: int = 0) -> None:
    """Set how late things are that are queued from now on. What is queued on one stream still comes one by one.

    Args:
        kernel_ms: after how many milliseconds a kernel writes its result.
        copy_ms: how many milliseconds a copy to a device's memory takes, from the host or from a device.
        fetch_ms: how many milliseconds a copy from a device to the host takes.
    """
    _driver.set_delays(kernel_ms, copy_ms, fetch_ms)


def limit_allocations(largest_bytes: int | None) -> None:
    """Make larger allocations of device memory raise torch.OutOfMemoryError; None for no limit."""
    _driver.set_largest_allocation(-1 if largest_bytes is None else largest_bytes)


def refuse_pinning(*, refuses: bool = True) -> None:
    """Make pinning raise RuntimeError, as over a limit on locked memory."""
    _driver.set_refuses_pinning(refuses)


def pinned_bytes() -> int:
    """Return how many bytes of the host are pinned: torch's, and those that the hooks have pinned."""
    return int(_driver.pinned_bytes())


def torn_unpins() -> int:
    """Return how often memory of the hooks was unpinned while a copy to it was queued, since the devices were there."""
    return int(_driver.torn_unpins())


def is_pinned(tensor: Tensor) -> bool:
    """Whether a tensor's memory is pinned. `Tensor.is_pinned()` knows that only once torch itself has pinned memory."""
    return bool(_driver.is_pinned(tensor.data_ptr()))


def break_device(number: int) -> None:
    """Make every later call for a device raise torch.AcceleratorError, as after an illegal access."""
    _driver.break_device(number)


def has_context(number: int) -> bool:
    """Whether this process has used a device since it was plugged in: on CUDA that takes half a gigabyte of it."""
    return bool(_driver.has_context(number))


# --- what torch and scripts call ------------------------------------------------------------------------------


def is_available() -> bool:
    return _driver is not None and bool(_driver.is_plugged_in())


def is_initialized() -> bool:
    return _driver is not None and bool(_driver.is_initialized())


def _is_in_bad_fork() -> bool:
    return bool(_driver.is_forked())


def _lazy_init() -> None:
    if not is_available():
        raise RuntimeError("there is no simulated accelerator: it is not plugged in")


def device_count() -> int:
    return DEVICES if is_available() else 0


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Any) -> None:
    torch.accelerator.set_device_index(device)


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(device)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Queue on a stream inside, and make its device the current one. None changes nothing."""
    if stream is None:
        yield
        return
    outside = current_stream()
    before = current_stream(stream.device)
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(before)
        set_stream(outside)


def synchronize(device: Any = None) -> None:
    torch.accelerator.synchronize(device)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return tuple(_driver.memory_info(_number(device)))


def memory_allocated(device: Any = None) -> int:
    return torch.accelerator.memory_allocated(_number(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def get_rng_state(device: Any = None) -> Tensor:
    state: Tensor = _driver.default_generator(_number(device)).get_state()
    return state


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(number) for number in range(DEVICES)]


def set_rng_state(state: Tensor, device: Any = None) -> None:
    _driver.default_generator(_number(device)).set_state(state)


def set_rng_state_all(states: list[Tensor]) -> None:
    for number, state in enumerate(states):
        set_rng_state(state, number)


def manual_seed(seed: int) -> None:
    _driver.default_generator(current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for number in range(DEVICES):
        _driver.default_generator(number).manual_seed(seed)


def _number(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return current_device() if index is None else index
