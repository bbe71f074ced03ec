"""The bucket layout of DistributedDataParallel, saved and replayed so that the first step after a resume is exact.

Where three ranks or more add gradients up, the last bit of a sum depends on where in a bucket a gradient lies, because
ranks add in another order at each place. DDP begins with buckets in the order of its parameters. After the first
backward pass of every process it rebuilds them in the order in which gradients came. So the first step after a resume
would differ from the undisturbed run's, unless the buckets are rebuilt before it: DDP is given gradients of zero in the
saved order. A Reducer of our own with the saved buckets was rejected, because its arguments are private and change with
torch's versions; so was keeping DDP from rebuilding, which is what makes DDP fast. The zeros are reduced as any
gradients are, so all ranks must restore at the same time; no random number is drawn. With find_unused_parameters DDP
keeps its first layout. Three and four ranks with a kill differed before, and are equal since (gloo).
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
_MIN_RANKS = 3  # below that the layout does not matter: the sum of two numbers is the same in either order


class BucketLayouts:
    """The layouts of all DDP wrappers of this process for which the layout matters."""

    def __init__(self, world_size: int) -> None:
        """Find the wrappers that the script has made. world_size: the number of the job's ranks."""
        self._matter = world_size >= _MIN_RANKS
        self._wrappers = sorted(self._find(), key=_signature)
        self._known: dict[str, Any] = {}

    def _find(self) -> list[DistributedDataParallel]:
        return [wrapper for wrapper in find_wrappers() if _rebuilds_buckets(wrapper)] if self._matter else []

    def made_later(self) -> bool:
        """Whether the script has made another wrapper since, whose layout no snapshot has."""
        known = set(map(id, self._wrappers))
        return any(id(wrapper) not in known for wrapper in self._find())

    def collect(self) -> dict[str, Any]:
        """Return the order of each wrapper's parameters in its buckets; empty until all have rebuilt their buckets."""
        if not self._known and self._wrappers:
            orders = [_order(wrapper) for wrapper in self._wrappers]
            self._known = {_ORDERS: orders} if all(orders) else {}
        return self._known

    def replay(self, saved: object) -> str:
        """Rebuild the buckets in the saved order. All ranks must call this together, before there are gradients.

        Args:
            saved: what `collect` returned.

        Returns:
            Why the next step is not exact; empty where it is.
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
        self._known = {_ORDERS: orders}  # DDP itself reports the order only after its next forward pass
        return ""


def _rebuilds_buckets(wrapper: DistributedDataParallel) -> bool:
    """Whether a wrapper rebuilds its buckets after the first step, and has enough ranks for that to matter."""
    rebuilds = wrapper.static_graph or not wrapper.find_unused_parameters
    return bool(rebuilds and wrapper.process_group.size() >= _MIN_RANKS)


def _signature(wrapper: DistributedDataParallel) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in _parameters(wrapper)]


def _parameters(wrapper: DistributedDataParallel) -> list[nn.Parameter]:
    """Return the parameters in DDP's order; an order names them by their numbers in this list."""
    ignored = set(wrapper.parameters_to_ignore)
    return [
        parameter
        for name, parameter in wrapper.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]


def _order(wrapper: DistributedDataParallel) -> list[int]:
    """Return the order of a wrapper's parameters in its buckets; empty until the buckets are rebuilt."""
    logged = _logged(wrapper)
    rebuilt = getattr(wrapper, "_has_rebuilt_buckets", False)
    if rebuilt and not logged.get("has_rebuilt_buckets") and wrapper.logger is not None:
        wrapper.logger.set_runtime_stats_and_log()  # the next forward pass would call this, too late for a snapshot
        logged = _logged(wrapper)
    text = str(logged.get("rebuilt_per_bucket_param_indices", "")) if logged.get("has_rebuilt_buckets") else ""
    return [int(number) for bucket in text.split(",") for number in bucket.split()]


def _logged(wrapper: DistributedDataParallel) -> dict[str, Any]:
    logged: dict[str, Any] = wrapper._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return logged


def _fits(wrapper: DistributedDataParallel, order: object) -> bool:
    return isinstance(order, list) and sorted(order) == list(range(len(_parameters(wrapper))))


def _hindrance(wrapper: DistributedDataParallel) -> str:
    """Return why gradients cannot be given to a wrapper before its first step; empty where they can."""
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
    """Make a backward pass of zeros, parameter by parameter.

    DDP rebuilds its buckets in this order before its next forward pass.
    """
    parameters = _parameters(wrapper)
    with torch.enable_grad():
        wrapper.reducer.prepare_for_backward([])
        for number in order:
            parameter = parameters[number]
            parameter.view_as(parameter).backward(torch.zeros_like(parameter))  # type: ignore[no-untyped-call]
    for parameter in parameters:
        parameter.grad = None
