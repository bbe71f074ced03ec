"""The buckets of DistributedDataParallel, which it lays out anew after the first step of every process.

Where three ranks or more add gradients up, the last bit of a sum depends on where in a bucket a gradient lies: ranks
add in another order at each place. DDP begins with buckets in the order of its parameters, and after the first backward
pass lays them out in the order in which gradients came. So the first step after a resume would differ from the
undisturbed run's, unless the buckets are laid out before it as they were: gradients of zero are given to DDP in that
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ftlaunch_hooks.tensors.replicated import find_wrappers

NAME = "ddp_buckets"
NOT_EXACT = (
    "the first step after this resume is not exact to the last bit: DistributedDataParallel lays out its buckets anew"
    " after it, and more than two ranks add in another order then; {why}"
)
_ORDERS = "orders"
_LEAST = 3  # ranks: the sum of two numbers is the same in either order


class BucketLayouts:
    """Of all wrappers of this process whose layout matters."""

    def __init__(self, world_size: int) -> None:
        """The script has made its wrappers. world_size: of the job."""
        self._matter = world_size >= _LEAST
        self._wrappers = sorted(self._find(), key=_signature)
        self._known: dict[str, Any] = {}

    def _find(self) -> list[DistributedDataParallel]:
        return [one for one in find_wrappers() if _lays_out_anew(one)] if self._matter else []

    def made_later(self) -> bool:
        """Whether the script has made another wrapper since, of which no snapshot knows the layout."""
        return any(all(one is not known for known in self._wrappers) for one in self._find())

    def collect(self) -> dict[str, Any]:
        """For each wrapper the order of its parameters in the buckets; empty before all have laid them out."""
        if not self._known and self._wrappers:
            orders = [_order(wrapper) for wrapper in self._wrappers]
            self._known = {_ORDERS: orders} if all(orders) else {}
        return self._known

    def replay(self, saved: object) -> str:
        """Lay the buckets out as they were. All ranks must do it at the same time, before any gradient is there.

        saved: what `collect` returned. Returns why the next step is not exact; empty where it is.
        """
        if not self._wrappers:
            return ""
        orders = saved.get(_ORDERS, []) if isinstance(saved, dict) else []
        if len(orders) != len(self._wrappers) or not all(map(_fits, self._wrappers, orders)):
            return "they were not laid out yet when the state was saved"
        for wrapper in self._wrappers:
            if why := _hindrance(wrapper):
                return why
        for wrapper, order in zip(self._wrappers, orders, strict=True):
            _give_zeros(wrapper, order)
        self._known = {_ORDERS: orders}  # DDP tells of it only behind its next forward pass
        return ""


def _lays_out_anew(wrapper: DistributedDataParallel) -> bool:
    again = wrapper.static_graph or not wrapper.find_unused_parameters
    return bool(again and wrapper.process_group.size() >= _LEAST)


def _signature(wrapper: DistributedDataParallel) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in _parameters(wrapper)]


def _parameters(wrapper: DistributedDataParallel) -> list[nn.Parameter]:
    """In DDP's order: an order names them by their numbers here."""
    ignored = set(wrapper.parameters_to_ignore)
    return [p for name, p in wrapper.module.named_parameters() if p.requires_grad and name not in ignored]


def _order(wrapper: DistributedDataParallel) -> list[int]:
    told = _logged(wrapper)
    rebuilt = getattr(wrapper, "_has_rebuilt_buckets", False)
    if rebuilt and not told.get("has_rebuilt_buckets") and wrapper.logger is not None:
        wrapper.logger.set_runtime_stats_and_log()  # as the next forward pass would: it tells of them only then
        told = _logged(wrapper)
    text = str(told.get("rebuilt_per_bucket_param_indices", "")) if told.get("has_rebuilt_buckets") else ""
    return [int(number) for bucket in text.split(",") for number in bucket.split()]


def _logged(wrapper: DistributedDataParallel) -> dict[str, Any]:
    told: dict[str, Any] = wrapper._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return told


def _fits(wrapper: DistributedDataParallel, order: object) -> bool:
    return isinstance(order, list) and sorted(order) == list(range(len(_parameters(wrapper))))


def _hindrance(wrapper: DistributedDataParallel) -> str:
    """Why gradients cannot be given to a wrapper before its first step."""
    if wrapper.static_graph:
        return "with static_graph its first step is like no other"
    if wrapper._comm_hooks:
        return "it has a communication hook"
    for parameter in _parameters(wrapper):
        if parameter.grad is not None:
            return "there are gradients already"
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return "a parameter has hooks on its gradient"
    return ""


def _give_zeros(wrapper: DistributedDataParallel, order: Sequence[int]) -> None:
    """A backward pass of zeros, a parameter at a time; before its next forward pass DDP lays out its buckets by it."""
    parameters = _parameters(wrapper)
    with torch.enable_grad():
        wrapper.reducer.prepare_for_backward([])
        for number in order:
            parameter = parameters[number]
            parameter.view_as(parameter).backward(torch.zeros_like(parameter))  # type: ignore[no-untyped-call]
    for parameter in parameters:
        parameter.grad = None
