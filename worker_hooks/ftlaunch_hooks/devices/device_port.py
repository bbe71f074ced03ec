"""All that ftlaunch asks of an accelerator: order, streams, events, memory, random numbers, pinning, graph capture.

All of it goes through `torch.accelerator`, `torch.Stream` and the device's own module, so that a device that has
registered with torch needs no line here. Only pinning and graph capture are CUDA's own: torch has no call that pins
memory mapped by somebody else, or that lets a thread work beside a capture. For pinning, a backend may add its own
calls to `host_pinners`.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of this process
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_DRIVER = "libcuda.so.1"

_streams: dict[torch.device, torch.Stream] = {}


class PinError(Exception):
    """Memory cannot be pinned."""


# --- which tensors, which devices ---------------------------------------------------------------------------------


def is_on_device(tensor: Tensor) -> bool:
    """Whether a tensor's bytes lie on an accelerator, and not in this process's memory."""
    return tensor.device.type not in ("cpu", "meta")


def find_accelerator() -> torch.device | None:
    """Return the type of the accelerator that this process has begun to use; None for none.

    Asks no driver, and begins nothing. A device's module without `is_initialized`, as torch.mps, counts as in use
    where the device is available.
    """
    accelerator = torch.accelerator.current_accelerator()  # the one that torch was built for
    if accelerator is None:
        return None
    is_initialized = getattr(_module_of(accelerator.type), "is_initialized", torch.accelerator.is_available)
    return accelerator if is_initialized() else None


def _module_of(kind: str) -> Any:
    """Return torch's module for a type of device; None where a backend has registered none."""
    return getattr(torch, kind, None)


def begin_to_use(kind: str) -> bool:
    """Begin to use the accelerator of a type in this process. Return whether there is one."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != kind or not torch.accelerator.is_available():
        return False
    init = getattr(_module_of(kind), "init", None)
    if init is not None:
        init()
    return True


def nearest_device(name: str) -> torch.device:
    """Return the device of this name, or the one that stands for it in this process.

    Args:
        name: a type, or a type with a number. Where this process has fewer devices of the type, the current one stands
            for those that are missing; where it has none, the CPU does.
    """
    device = torch.device(name)
    if device.type in ("cpu", "meta"):
        return device
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type or not torch.accelerator.is_available():
        return torch.device("cpu")
    if (device.index or 0) >= torch.accelerator.device_count():
        return torch.device(device.type, torch.accelerator.current_device_index())
    return device


def devices_in_use() -> list[torch.device]:
    """Return the devices that this process computes on: its current one, and each on which torch holds memory.

    A device that the process merely sees is left alone: the first call for it would take half a gigabyte of it.
    """
    accelerator = find_accelerator()
    if accelerator is None:
        return []
    current = torch.device(accelerator.type, torch.accelerator.current_device_index())
    return [current, *(device for device in devices_with_memory() if device != current)]


def devices_with_memory() -> list[torch.device]:
    """Return the devices on which torch holds memory for this process; all where its allocator does not tell."""
    accelerator = find_accelerator()
    if accelerator is None:
        return []
    numbers = range(torch.accelerator.device_count())
    return [torch.device(accelerator.type, number) for number in numbers if _holds_memory(number)]


def _holds_memory(number: int) -> bool:
    """Return whether torch holds memory of a device; True where its allocator does not tell."""
    try:
        return torch.accelerator.memory_reserved(number) > 0
    except RuntimeError:  # a pluggable allocator, for instance
        return True


# --- order --------------------------------------------------------------------------------------------------------


def wait_for_devices() -> None:
    """Wait until every device in use has done all that is queued on it, on whatever stream.

    This covers streams that the script has forked off, and copies into pinned tensors of this process's memory.
    """
    for device in devices_in_use():
        torch.accelerator.synchronize(device)


def own_stream(device: torch.device) -> torch.Stream:
    """Return this process's one stream of `device` for snapshots.

    torch hands out 32 streams in turn, so that a new one for each snapshot would soon be one that the script uses.
    The first call for a device is made in the main thread.
    """
    if device not in _streams:
        _streams[device] = torch.Stream(device)
    return _streams[device]


def order_after_script(device: torch.device) -> None:
    """Make what is queued on this process's own stream from now on wait for what this thread has queued so far."""
    own_stream(device).wait_stream(torch.accelerator.current_stream(device))


def record_events(devices: Iterable[torch.device]) -> list[torch.Event]:
    """Return an event for each device, behind what this thread has queued on the device's current stream."""
    return [record_event(torch.accelerator.current_stream(device)) for device in devices]


def record_event(stream: torch.Stream) -> torch.Event:
    """Return an event behind what is queued on a stream."""
    event = torch.Event(stream.device)
    event.record(stream)
    return event


def prepare_thread(device: torch.device) -> None:
    """Prepare this thread for work on `device` beside the script's. Call this in the thread, once or more often.

    A new thread's current device is the first one: the first call would take memory of it, in every rank.
    """
    torch.accelerator.set_device_index(device.index or 0)
    if device.type == "cuda":
        _relax_capture()


def can_work_beside_capture(device: torch.device) -> bool:
    """Whether a thread may use `device` while the script may be capturing a graph on it."""
    if device.type != "cuda":
        return True
    try:
        return torch.version.hip is None and bool(ctypes.CDLL(_DRIVER).cuThreadExchangeStreamCaptureMode)
    except (OSError, AttributeError):
        return False


def _relax_capture() -> None:
    """Keep this thread's calls from invalidating a graph capture in another thread.

    While any thread captures with capture_error_mode="global", torch's default, a wait for a stream or an allocation
    in another thread makes the capture invalid, and itself fails: measured on an H100 (driver 580, torch 2.11).
    """
    mode = ctypes.c_int(_RELAXED)
    ctypes.CDLL(_DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def find_undetermined_order() -> str:
    """Return why kernels of the accelerator in use may compute in another order each time; "" if nothing says so.

    Torch's own switches are read, no others. On other accelerators than CUDA the first may say nothing of kernels.
    """
    accelerator = find_accelerator()
    if accelerator is None:
        return ""
    if not torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms(True) was not called"
    if accelerator.type == "cuda" and torch.backends.cudnn.benchmark:
        return "torch.backends.cudnn.benchmark is on, which chooses kernels by the clock"
    return ""


# --- memory -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceMemory:
    """A device's memory in bytes, and how much of it torch's allocator of this process holds."""

    free: int
    """bytes that the driver has free, for all processes"""
    total: int
    allocated: int
    reserved: int
    """bytes that are allocated, or kept by the allocator for later"""
    peak_allocated: int
    peak_reserved: int
    retries: int
    """how often the allocator had to give back what it kept before an allocation succeeded"""


def memory_of(device: torch.device) -> DeviceMemory | None:
    """Return the memory of a device; None where the device reports none."""
    module = _module_of(device.type)
    if not hasattr(module, "mem_get_info"):
        return None
    try:
        stats = torch.accelerator.memory_stats(device)
    except RuntimeError:  # the allocator keeps no figures: a pluggable one, for instance
        return None
    if not stats:
        return None
    free, total = module.mem_get_info(device)
    return DeviceMemory(
        free=free,
        total=total,
        allocated=stats["allocated_bytes.all.current"],
        reserved=stats["reserved_bytes.all.current"],
        peak_allocated=stats["allocated_bytes.all.peak"],
        peak_reserved=stats["reserved_bytes.all.peak"],
        retries=stats["num_alloc_retries"],
    )


# --- random numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomStates:
    """The states of the generators of an accelerator."""

    kind: str
    """type of the accelerator"""
    current: int
    """number of this process's current device"""
    states: list[Tensor]
    """by device, in this process's memory; empty where torch's module for the accelerator does not give them"""


def random_states() -> RandomStates | None:
    """Return the states of the generators of all devices that this process sees; None where it uses no accelerator."""
    accelerator = find_accelerator()
    if accelerator is None:
        return None
    module = _module_of(accelerator.type)
    states: list[Tensor] = []
    if hasattr(module, "get_rng_state_all"):
        states = list(module.get_rng_state_all())
    elif hasattr(module, "get_rng_state"):
        states = [module.get_rng_state()]
    return RandomStates(accelerator.type, torch.accelerator.current_device_index(), states)


def put_back_random_states(kind: str, states: Sequence[Tensor]) -> None:
    """Put the generators of an accelerator back.

    Args:
        kind: type of the accelerator, which is in use.
        states: of all devices that this process sees, or a single one: that of the current device.
    """
    module = _module_of(kind)
    if len(states) > 1:
        module.set_rng_state_all(states)
    else:
        module.set_rng_state(states[0])


def current_random_state() -> Tensor | None:
    """Return the state of the current device's generator, in this process's memory; None where there is none in use."""
    accelerator = find_accelerator()
    if accelerator is None or not hasattr(_module_of(accelerator.type), "get_rng_state"):
        return None
    state: Tensor = _module_of(accelerator.type).get_rng_state()
    return state


def put_back_current_random_state(state: Tensor) -> None:
    """Put the current device's generator where `current_random_state` found it.

    Where this process uses no accelerator that takes such a state, nothing happens.
    """
    now = current_random_state()
    accelerator = find_accelerator()
    if accelerator is not None and now is not None and now.shape == state.shape:
        _module_of(accelerator.type).set_rng_state(state)


def seed_current(seed: int) -> None:
    """Give the current device's generator a seed of 64 bits, where an accelerator is in use."""
    accelerator = find_accelerator()
    if accelerator is not None and hasattr(_module_of(accelerator.type), "manual_seed"):
        _module_of(accelerator.type).manual_seed(seed)


def default_generators() -> list[torch.Generator]:
    """Return the generators of the accelerator's devices, as far as torch's module for it lists them."""
    accelerator = torch.accelerator.current_accelerator()
    return [] if accelerator is None else list(getattr(_module_of(accelerator.type), "default_generators", ()))


# --- memory that devices write to by themselves -------------------------------------------------------------------


class HostPinner(Protocol):
    """Pins memory of this process that torch has not allocated, for all devices of one type."""

    def pin(self, address: int, size: int) -> None:
        """Pin `size` bytes from `address` on, which are mapped. Raises PinError, for example over a limit."""

    def unpin(self, address: int) -> None:
        """Undo `pin`. No device has work queued any more that reads or writes the memory. Raises RuntimeError."""


class _CudaPinner:
    """Implements HostPinner by CUDA's runtime, or HIP's."""

    def pin(self, address: int, size: int) -> None:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if code := int(runtime.cudaHostRegister(address, size, _PORTABLE)):
            _drop_last_error()
            raise PinError(torch.cuda.CudaError(code).args[0])

    def unpin(self, address: int) -> None:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if code := int(runtime.cudaHostUnregister(address)):
            _drop_last_error()
            torch.cuda.check_error(code)


host_pinners: dict[str, HostPinner] = {"cuda": _CudaPinner()}
"""by type of device. Who uses another accelerator may add an entry before attach(); without one nothing is pinned."""


_never_unpinned: list[mmap.mmap] = []


class PinnedMap:
    """A map that is pinned until `close`, so that a device copies to it without this process's help.

    The map is kept as long: memory that is unmapped while it is pinned counts as pinned for whatever is mapped there
    next.
    """

    def __init__(self, mapped: mmap.mmap, size: int, pinner: HostPinner) -> None:
        """Pin `size` bytes from the beginning of `mapped`.

        Raises PinError, for example over a limit on locked memory.
        """
        self._mapped = mapped
        self._pinner = pinner
        self._address = torch.frombuffer(mapped, dtype=torch.uint8, count=1).data_ptr()
        pinner.pin(self._address, size)

    def close(self) -> None:
        """Unpin the memory. Call this before the map is unmapped, and after all copies to the map.

        A device that is broken unpins nothing. Then the map stays for as long as this process.
        """
        try:
            self._pinner.unpin(self._address)
        except RuntimeError:
            _never_unpinned.append(self._mapped)
        del self._mapped


def allocate_pinned(size: int) -> Tensor:
    """Return `size` bytes of host memory, uint8, from which devices copy by themselves.

    The memory is pinned by torch. Where that is refused, it is ordinary memory, and each copy from it waits.
    """
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty(size, dtype=torch.uint8, device="cpu")


def pin(mapped: mmap.mmap, size: int, device: torch.device) -> PinnedMap:
    """Pin a map for the process's devices, of which `device` is one. Raises PinError."""
    pinner = host_pinners.get(device.type)
    if pinner is None:
        raise PinError(f"torch cannot pin memory that it has not allocated for a device of type {device.type}")
    return PinnedMap(mapped, size, pinner)


def _drop_last_error() -> None:
    """Clear the error that a refused call has left in the runtime, which the script's next kernel would report.

    Any kernel launch clears it. A real fault of the device is raised again by the next call.
    """
    try:
        torch.ones(1, device="cuda")
    except RuntimeError:
        return
