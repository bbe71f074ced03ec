"""Samples the trained parameters: gathers a few numbers of each at a step boundary without reading the rest.

The numbers lie at equal distances in a parameter's memory, always at the same places. Many parameters take turns, a
group at each step, so that a boundary never touches more than some hundred places in memory: each place likely misses
the processor's caches. StepProof calls this module in the thread that trains.
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
"""largest number of parameters that are sampled at one boundary"""
_NUMBERS_IN_TURN = 128
"""largest number of values that are read at one boundary, except that each parameter of the turn gets at least one"""
_MOST_OF_PARAMETER = 8
"""largest number of values that are read of one parameter"""
_SAMPLED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Turn:
    """The parameters that are sampled at one boundary."""

    first: int
    """index of the first parameter in `ParameterSamples.names`"""
    names: list[str]
    parameters: list[Tensor]
    """the script's own tensors, in the order of `names`"""
    views: dict[tuple[torch.device, torch.dtype], list[Tensor]]
    """the sampled places of the parameters, by device and dtype; the widest dtype comes first, which aligns all"""
    addresses: list[int]
    """where the parameters lay in memory as the views were made"""
    are_plain: bool
    """whether none of the parameters is a DTensor, so that `data_ptr` gives their addresses at once"""

    @classmethod
    def of(cls, found: Mapping[str, Tensor], *, first: int, most_numbers: int) -> _Turn:
        """Lay out the samples of some parameters. most_numbers: the largest number of values of one parameter."""
        parameters = list(found.values())
        views: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for parameter in parameters:
            local = local_of(parameter).detach()
            views.setdefault((local.device, local.dtype), []).append(_places(local, most_numbers))
        are_plain = not any(map(is_sharded, parameters))
        return cls(
            first=first,
            names=list(found),
            parameters=parameters,
            views=dict(sorted(views.items(), key=lambda item: -item[0][1].itemsize)),
            addresses=_addresses(parameters, are_plain=are_plain),
            are_plain=are_plain,
        )


class ParameterSamples:
    """The sampled parameters of a rank."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """Lay out the samples of everything that is trained in the attached modules and optimizers.

        Args:
            objects: attached objects by name.
        """
        self._trained = dict(_trained(objects))
        self.names = list(self._trained)
        """names of the parameters, in the order of the turns"""
        turns = max(1, -(-len(self.names) // _MOST_IN_TURN))
        self._parameters_in_turn = max(1, -(-len(self.names) // turns))
        self._turns = self._make_turns()
        self.bytes_needed = max((_bytes_of(turn) for turn in self._turns), default=0) + 7 & ~7
        """largest size of the samples of one boundary, in bytes; a multiple of 8"""
        shapes = {name: (tuple(local_of(tensor).shape), tensor.dtype) for name, tensor in self._trained.items()}
        layout = "\n".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in shapes.items())
        self.checksum = zlib.crc32(layout.encode())
        """checksum of names, shapes and dtypes: with equal checksums the samples have the same layout"""
        devices = dict.fromkeys(local_of(tensor).device for tensor in self._trained.values())
        self.devices = [device for device in devices if device.type != "cpu"]
        """the devices other than the CPU on which parameters lie; empty if all lie in this process's memory"""
        self._memory: memoryview | None = None
        """the memory for which `_outputs` were made"""
        self._outputs: dict[tuple[int, int], list[Tensor]] = {}
        """the places in the memory for the numbers of each dtype, by offset and index of the turn"""

    def _make_turns(self) -> list[_Turn]:
        most_numbers = max(1, min(_MOST_OF_PARAMETER, _NUMBERS_IN_TURN // self._parameters_in_turn))
        turns = []
        for first in range(0, len(self.names), self._parameters_in_turn):
            names = self.names[first : first + self._parameters_in_turn]
            found = {name: self._trained[name] for name in names}
            turns.append(_Turn.of(found, first=first, most_numbers=most_numbers))
        return turns

    def gather(self, step: int, memory: memoryview, offset: int) -> bool:
        """Write the samples of the boundary of `step` into `memory` at `offset`.

        Samples of parameters on a device are queued on the device's current stream, and arrive later. The memory should
        be pinned then.

        Returns:
            True if the samples are written or queued. False if there is nothing to sample, or if a parameter has lost
            its memory or its shape; then nothing is written.
        """
        if not self._turns:
            return False
        number = step % len(self._turns)
        turn = self._turns[number]
        addresses = _addresses(turn.parameters, are_plain=turn.are_plain)
        if addresses != turn.addresses:  # `p.data = x`, or the module has moved
            if not all(map(_can_be_sampled, self._trained.values())):
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

        Args:
            step: the step at whose boundary both samples were gathered.
            before: the samples of the process that has ended.
            now: the samples of this process.

        Returns:
            The index of the parameter in `names`, and its first number that differs, before and now. None if all
            samples are equal.
        """
        turn = self._turns[step % len(self._turns)]
        for index, numbers_before, numbers_now in self._by_parameter(turn, before, now):
            if not torch.equal(_bits(numbers_before), _bits(numbers_now)):
                place = int((_bits(numbers_before) != _bits(numbers_now)).nonzero()[0])
                return index, float(numbers_before[place]), float(numbers_now[place])
        return None

    def distance(self, step: int, before: bytes, now: bytes) -> float:
        """Return the Euclidean distance of two samples that were gathered at the boundary of `step`."""
        turn = self._turns[step % len(self._turns)]
        squares = [
            float((numbers_before.double() - numbers_now.double()).square().sum())
            for _, numbers_before, numbers_now in self._by_parameter(turn, before, now)
        ]
        return math.sqrt(sum(squares))

    @property
    def is_half(self) -> bool:
        """Whether a parameter has half precision, so that results computed from the parameter round earlier."""
        return any(parameter.dtype.itemsize == 2 for parameter in self._trained.values())

    @property
    def is_one_turn(self) -> bool:
        """Whether every boundary samples the same parameters."""
        return len(self._turns) == 1

    def _by_parameter(self, turn: _Turn, before: bytes, now: bytes) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the index of each parameter of a turn, and its numbers in two samples, in the order of the indices."""
        indices = {name: turn.first + place for place, name in enumerate(turn.names)}
        begin = 0
        found = []
        kinds = [(local_of(parameter).device, parameter.dtype) for parameter in turn.parameters]
        for (device, dtype), views in turn.views.items():
            names = [name for name, kind in zip(turn.names, kinds, strict=True) if kind == (device, dtype)]
            for name, view in zip(names, views, strict=True):
                end = begin + view.numel() * dtype.itemsize
                numbers_before = torch.frombuffer(bytearray(before[begin:end]), dtype=dtype)
                numbers_now = torch.frombuffer(bytearray(now[begin:end]), dtype=dtype)
                found.append((indices[name], numbers_before, numbers_now))
                begin = end
        yield from sorted(found, key=lambda entry: entry[0])


def _trained(objects: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that training changes by gradients, by name.

    Of modules these are the parameters that require gradients, of optimizers the parameters that no attached module
    has.
    """
    seen = set[int]()
    for name, target in objects.items():
        if isinstance(target, nn.Module):
            for inner, parameter in target.named_parameters():
                seen.add(id(parameter))
                if parameter.requires_grad and _can_be_sampled(parameter):
                    yield f"{name}.{inner}", parameter
    for name, target in objects.items():
        if isinstance(target, Optimizer):
            stepped = [parameter for group in target.param_groups for parameter in group["params"]]
            for place, parameter in enumerate(stepped):
                if id(parameter) not in seen and _can_be_sampled(parameter):
                    seen.add(id(parameter))
                    yield f"{name}.{place}", parameter


def _can_be_sampled(parameter: Tensor) -> bool:
    """Return whether the numbers of a parameter, or of this rank's shard, lie in memory that can be read by strides."""
    if parameter.is_meta or parameter.layout is not torch.strided or isinstance(parameter, UninitializedParameter):
        return False
    local = local_of(parameter).detach()
    is_plain = type(local) is Tensor and local.dtype in _SAMPLED
    return bool(is_plain and local.numel() and local.untyped_storage().nbytes())


def _addresses(parameters: list[Tensor], *, are_plain: bool) -> list[int]:
    if are_plain:
        return [parameter.data_ptr() for parameter in parameters]
    return [local_of(parameter).data_ptr() for parameter in parameters]


def _places(tensor: Tensor, most_numbers: int) -> Tensor:
    """Return a view of up to `most_numbers` numbers of a tensor at equal distances, from the first number on."""
    count = min(most_numbers, tensor.numel())
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
    """Yield a tensor on `memory` for the numbers of each device and dtype of a turn, one after the other."""
    for (_, dtype), views in turn.views.items():
        count = sum(view.numel() for view in views)
        yield torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
        offset += count * dtype.itemsize


def _bits(numbers: Tensor) -> Tensor:
    """Return a view of the numbers as integers, so that NaN equals NaN, and 0.0 differs from -0.0."""
    return numbers.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[numbers.element_size()])
