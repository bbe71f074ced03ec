"""The buffers of a module that its state_dict() leaves out (persistent=False), as a part of a rank's state.

Most of them are tables that the script computes anew, but a buffer that changes in training is state all the same.
Small buffers are always saved. A large one is saved from the first snapshot after it was written to or replaced: its
version tells, and a digest of its bytes tells of writes through `.data`, which do not change the version.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

import torch
import xxhash
from torch import Tensor, nn

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.state.collector import Collector, check_plain
from ftlaunch_hooks.state.parts import Loader
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.tensors.device_fingerprint import digest_of
from ftlaunch_hooks.tensors.dtypes import is_sharded
from ftlaunch_hooks.tensors.json_codec import StateError
from ftlaunch_hooks.tensors.memory_layout import Restored

SMALL = 64 * 1024  # bytes; a buffer of at most this size is always saved
_WORDS = 1 << 20  # how many are digested at a time on a device

Clean = Callable[[Mapping[str, object]], dict[str, str]]
"""Maps names in a module to names without what wrappers put in front."""


class NonPersistentBuffers:
    """Collects and restores the non-persistent buffers of one attached module."""

    def __init__(self, name: str, module: nn.Module, clean: Clean) -> None:
        self._name = name
        self._module = module
        self._clean = clean
        self._found: dict[str, Tensor] = {}
        self._first: dict[str, tuple[Tensor, int, int]] = {}  # when first seen: the tensor, its version, its digest
        self._changed: set[str] = set()

    def find(self) -> None:
        """Look up which non-persistent buffers the module has now."""
        self._found = {name: owner._buffers[key] for name, (owner, key) in self._places().items()}  # type: ignore[misc]

    def collect(self, collector: Collector) -> list[str]:
        """Put the buffers that are to be saved into the collector; return their names. Raises StateError."""
        saved = []
        for name, buffer in self._found.items():
            if name in self._changed or _is_small(buffer) or self._has_changed(name, buffer):
                collector.put((self._name, name), buffer, key=self._key(name), restored=Restored.APART)
                saved.append(name)
        return saved

    def _has_changed(self, name: str, buffer: Tensor) -> bool:
        """Whether a large buffer has changed since it was first seen."""
        if name not in self._first:
            self._first[name] = (buffer, _version(buffer), _digest(buffer))
            return False
        first, version, digest = self._first[name]
        if first is not buffer or _version(buffer) != version or _digest(buffer) != digest:
            self._changed.add(name)
            return True
        return False

    def plan(self, names: Sequence[str], saved: Lookup) -> Loader:
        """Check that the saved buffers fit, changing nothing; return a function that loads them. Raises StateError."""
        owners = self._owners()
        for name in names:
            saved.check(self._key(name), None)
            if name.rpartition(".")[0] not in owners:
                raise StateError(f"cannot restore `{self._name}.{name}`: the module that had this buffer is gone")

        def load() -> None:
            for name in names:
                path, _, key = name.rpartition(".")
                self._load(name, owner=owners[path], key=key, saved=saved)
            self._changed.update(names)
            self.find()

        return load

    def _load(self, name: str, owner: nn.Module, key: str, saved: Lookup) -> None:
        buffer = owner._buffers.get(key)
        dtype, shape = saved.info(self._key(name))
        if buffer is not None and (buffer.dtype, tuple(buffer.shape)) == (dtype, shape):
            saved.fill({self._key(name): buffer})
        else:
            neighbours = [*owner.parameters(), *nn.Module.buffers(owner)]
            device = neighbours[0].device.type if neighbours else "cpu"
            owner.register_buffer(key, saved.get(self._key(name), device), persistent=False)

    def _key(self, name: str) -> str:
        return f"{self._name}.{name}:nonpersistent".replace("@", "@@")

    def _owners(self) -> dict[str, nn.Module]:
        """Map the clean names of all modules to the modules; of a wrapper and its module the outer one counts."""
        modules = dict(self._module.named_modules())
        clean = self._clean(modules)
        return {clean[path]: module for path, module in reversed(modules.items())}

    def _places(self) -> dict[str, tuple[nn.Module, str]]:
        found = {
            f"{path}.{key}".lstrip("."): (module, key)
            for path, module in self._module.named_modules()
            for key in sorted(module._non_persistent_buffers_set)
            if module._buffers.get(key) is not None
        }
        clean = self._clean(found) if found else {}
        return {clean[raw]: place for raw, place in found.items()}


def _version(buffer: Tensor) -> int:
    return 0 if buffer.is_inference() else buffer._version


def _digest(buffer: Tensor) -> int:
    """Return a digest of a buffer's bytes; 0 where they do not lie in one stretch of memory, or are none."""
    if is_sharded(buffer) or buffer.layout is not torch.strided or not buffer.is_contiguous():
        return 0
    if buffer.is_meta or buffer.is_quantized:
        return 0
    if device_port.is_on_device(buffer):
        return _digest_on_device(buffer)
    return xxhash.xxh3_128_intdigest((ctypes.c_char * buffer.nbytes).from_address(buffer.data_ptr()))


def _digest_on_device(buffer: Tensor) -> int:
    data = buffer.detach().resolve_conj().resolve_neg().view(-1).view(torch.uint8)
    if data.numel() % 4 == 0 and data.storage_offset() % 4 == 0:
        data = data.view(torch.int32)
    return digest_of(data, _WORDS)


def _is_small(buffer: Tensor) -> bool:
    """Whether a buffer is small enough to be saved always, and of a kind that can be saved.

    A buffer of another kind is not refused, because it may be a constant.
    """
    if is_sharded(buffer) or buffer.layout is not torch.strided or buffer.nbytes > SMALL:
        return False
    try:
        check_plain((), buffer)
    except StateError:
        return False
    return True
