"""Samples of the trained parameters: a few numbers of each, gathered at a step boundary without reading the rest.

The numbers lie at equal distances in a parameter's memory, always at the same places. Where there are many parameters
they take turns, a group a step, so that a boundary never touches more than a hundred places in memory: each of them is
likely a miss of the processor's caches.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from ftlaunch_hooks.tensors.dtypes import is_sharded, local_of

_MOST_IN_TURN = 32
"""parameters that are sampled at one boundary"""
_NUMBERS = 128
"""numbers that are read at one boundary, as long as each parameter of the turn gets one"""
_MOST_OF_ONE = 8
"""numbers of one parameter"""
_SAMPLED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Turn:
    """The parameters that are sampled at one boundary.

    first: index of the first parameter in `ParameterSamples.names`. parameters: as the script has them, in the order of
    `names`. views: the sampled places of the parameters, by device and dtype; the widest dtype first, so that each lies
    aligned.
    """

    first: int
    names: list[str]
    parameters: list[Tensor]
    views: dict[tuple[torch.device, torch.dtype], list[Tensor]]
    addresses: list[int]
    are_plain: bool
    """none of the parameters is a DTensor: their addresses can be asked for at once"""

    @classmethod
    def of(cls, found: Mapping[str, Tensor], *, first: int, each: int) -> _Turn:
        """Lay out the samples of some parameters. each: numbers of one parameter, at most."""
        parameters = list(found.values())
        views: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for one in parameters:
            local = local_of(one).detach()
            views.setdefault((local.device, local.dtype), []).append(_places(local, each))
        widest_first = dict(sorted(views.items(), key=lambda item: -item[0][1].itemsize))
        are_plain = not any(map(is_sharded, parameters))
        return cls(first, list(found), parameters, widest_first, _addresses(parameters, are_plain=are_plain), are_plain)


class ParameterSamples:
    """The sampled parameters of a rank."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """objects: name -> attached object; of modules and optimizers what is trained is sampled."""
        self._found = dict(_trained(objects))
        self.names = list(self._found)
        """of the parameters, in the order of the turns"""
        count = max(1, -(-len(self.names) // _MOST_IN_TURN))
        self._size = max(1, -(-len(self.names) // count))
        self._turns = self._make_turns()
        self.bytes_needed = max((_bytes_of(turn) for turn in self._turns), default=0) + 7 & ~7
        """bytes that the samples of one boundary take, at most; a multiple of 8"""
        shapes = {name: (tuple(local_of(one).shape), one.dtype) for name, one in self._found.items()}
        layout = "\n".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in shapes.items())
        self.checksum = zlib.crc32(layout.encode())
        """of names, shapes and dtypes: samples of the same checksum lie alike"""
        devices = [local_of(one).device for one in self._found.values()]
        self.device = next((device for device in devices if device.type != "cpu"), None)
        """the first device, other than the CPU, on which parameters lie; None where there is none"""
        self._memory: memoryview | None = None
        self._outputs: dict[tuple[int, int], list[Tensor]] = {}
        """by offset and turn: where in the memory the numbers of each dtype go"""

    def _make_turns(self) -> list[_Turn]:
        each = max(1, min(_MOST_OF_ONE, _NUMBERS // self._size))
        firsts = range(0, len(self.names), self._size)
        parts = [(first, self.names[first : first + self._size]) for first in firsts]
        return [_Turn.of({name: self._found[name] for name in names}, first=first, each=each) for first, names in parts]

    def gather(self, step: int, memory: memoryview, offset: int) -> bool:
        """Write the samples of the boundary of `step` into `memory` at `offset`.

        Those of a device are queued on its current stream, and are there once the device has come to them: then the
        memory should be pinned.

        Returns:
            False where there is nothing to sample, or a parameter has lost its memory or its shape: nothing is written.
        """
        if not self._turns:
            return False
        number = step % len(self._turns)
        turn = self._turns[number]
        addresses = _addresses(turn.parameters, are_plain=turn.are_plain)
        if addresses != turn.addresses:  # `p.data = x`, or the module has moved
            if not all(map(_can_be_sampled, self._found.values())):
                return False
            turns = self._make_turns()
            if max(map(_bytes_of, turns)) > self.bytes_needed:
                return False
            self._turns = turns
            turn = turns[number]
            self._memory = None
        if memory is not self._memory:
            self._memory = memory
            self._outputs = {}
        outputs = self._outputs.get((offset, number))
        if outputs is None:
            outputs = self._outputs[offset, number] = list(_outputs(turn, memory, offset))
        with torch.no_grad():
            for (device, _), output in zip(turn.views, outputs, strict=True):
                views = turn.views[device, output.dtype]
                if device.type == "cpu":
                    torch.cat(views, out=output)
                else:
                    output.copy_(torch.cat(views), non_blocking=True)
        return True

    def first_difference(self, step: int, before: bytes, now: bytes) -> tuple[int, float, float] | None:
        """Find the first parameter whose samples differ.

        Returns:
            Its index in `names`, and the first number that differs, before and now; None where all are alike.
        """
        turn = self._turns[step % len(self._turns)]
        for index, numbers_before, numbers_now in self._by_parameter(turn, before, now):
            if not torch.equal(_bits(numbers_before), _bits(numbers_now)):
                place = int((_bits(numbers_before) != _bits(numbers_now)).nonzero()[0])
                return index, float(numbers_before[place]), float(numbers_now[place])
        return None

    def distance(self, step: int, before: bytes, now: bytes) -> float:
        """Return the root of the summed squares of what two samples of one boundary differ by."""
        turn = self._turns[step % len(self._turns)]
        pairs = [(one, other) for _, one, other in self._by_parameter(turn, before, now)]
        return math.sqrt(sum(float((one.double() - other.double()).square().sum()) for one, other in pairs))

    @property
    def is_half(self) -> bool:
        """Whether a parameter has half precision: what is computed from it rounds earlier."""
        return any(one.dtype.itemsize == 2 for one in self._found.values())

    @property
    def is_one_turn(self) -> bool:
        """Whether every boundary samples the same parameters."""
        return len(self._turns) == 1

    def _by_parameter(self, turn: _Turn, before: bytes, now: bytes) -> Iterator[tuple[int, Tensor, Tensor]]:
        order = {name: turn.first + place for place, name in enumerate(turn.names)}
        at = 0
        found = []
        places = [(local_of(one).device, one.dtype) for one in turn.parameters]
        for (device, dtype), views in turn.views.items():
            names = [name for name, place in zip(turn.names, places, strict=True) if place == (device, dtype)]
            for name, view in zip(names, views, strict=True):
                end = at + view.numel() * dtype.itemsize
                numbers = [torch.frombuffer(bytearray(one[at:end]), dtype=dtype) for one in (before, now)]
                found.append((order[name], numbers[0], numbers[1]))
                at = end
        yield from sorted(found, key=lambda one: one[0])


def _trained(objects: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield what training changes by gradients: of modules what requires them, of optimizers what no module has."""
    seen = set[int]()
    for name, target in objects.items():
        if isinstance(target, nn.Module):
            for inner, parameter in target.named_parameters():
                seen.add(id(parameter))
                if parameter.requires_grad and _can_be_sampled(parameter):
                    yield f"{name}.{inner}", parameter
    for name, target in objects.items():
        if isinstance(target, Optimizer):
            stepped = [one for group in target.param_groups for one in group["params"]]
            for place, parameter in enumerate(stepped):
                if id(parameter) not in seen and _can_be_sampled(parameter):
                    seen.add(id(parameter))
                    yield f"{name}.{place}", parameter


def _can_be_sampled(parameter: Tensor) -> bool:
    """Whether its numbers, or this rank's shard of them, lie in rows of some memory."""
    if parameter.is_meta or parameter.layout is not torch.strided or isinstance(parameter, UninitializedParameter):
        return False
    local = local_of(parameter).detach()
    is_plain = type(local) is Tensor and local.dtype in _SAMPLED
    return bool(is_plain and local.numel() and local.untyped_storage().nbytes())


def _addresses(parameters: list[Tensor], *, are_plain: bool) -> list[int]:
    if are_plain:
        return [parameter.data_ptr() for parameter in parameters]
    return [local_of(parameter).data_ptr() for parameter in parameters]


def _places(tensor: Tensor, each: int) -> Tensor:
    """View so many numbers of a tensor at equal distances, the first one included."""
    count = min(each, tensor.numel())
    if tensor.is_contiguous():
        distance = tensor.numel() // count
        return tensor.view(-1)[::distance][:count]
    longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
    line = tensor
    for dim in reversed(range(tensor.dim())):
        if dim != longest:
            line = line.select(dim, 0)
    count = min(count, line.numel())
    return line[:: line.numel() // count][:count]


def _bytes_of(turn: _Turn) -> int:
    return sum(view.numel() * view.element_size() for views in turn.views.values() for view in views)


def _outputs(turn: _Turn, memory: memoryview, offset: int) -> Iterator[Tensor]:
    for (_, dtype), views in turn.views.items():
        count = sum(view.numel() for view in views)
        yield torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
        offset += count * dtype.itemsize


def _bits(numbers: Tensor) -> Tensor:
    return numbers.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[numbers.element_size()])
