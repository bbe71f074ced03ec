"""Which parameters are the same on every rank: those under DistributedDataParallel over all ranks."""

from __future__ import annotations

import gc

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def replicated_parameters(world_size: int) -> dict[int, nn.Parameter]:
    """id -> parameter, of every parameter that DistributedDataParallel keeps equal over `world_size` ranks.

    A wrapper knows its module and not the other way round, and either may be attached: this looks for
    wrappers among all live objects (about 20 ms, once).
    """
    found: dict[int, nn.Parameter] = {}
    if world_size == 1:
        return found
    kinds = _with_subclasses(DistributedDataParallel)
    for wrapper in [candidate for candidate in gc.get_objects() if type(candidate) in kinds]:
        if wrapper.process_group.size() != world_size:  # replicas of a part of the ranks only
            continue
        ignored = set(wrapper.parameters_to_ignore)
        for name, parameter in wrapper.module.named_parameters():
            if name not in ignored:
                found[id(parameter)] = parameter
    return found


def _with_subclasses(kind: type) -> set[type]:
    kinds = {kind}
    subclass: type
    for subclass in kind.__subclasses__():
        kinds |= _with_subclasses(subclass)
    return kinds
