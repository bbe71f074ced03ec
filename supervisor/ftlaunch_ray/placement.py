"""Explains in a sentence why Ray has not placed the nodes of a job yet. Pure; used by `launcher`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftlaunch.common.formatting import counted

_MAX_NODES_NAMED = 8


class RayNode(NamedTuple):
    """A node of a Ray cluster, and its total resources, used or free."""

    address: str
    resources: Mapping[str, float]


def why_not(bundles: Sequence[Mapping[str, float]], spare: int, nodes: Sequence[RayNode]) -> str:
    """Say what the job wants, and what the cluster has.

    Args:
        bundles: resources of each node of the job; all are alike.
        spare: how many of the bundles are for standby nodes.
        nodes: the living nodes of the cluster.
    """
    each = bundles[0]
    wanted = len(bundles)
    fitting = sum(all(node.resources.get(name, 0.0) >= amount for name, amount in each.items()) for node in nodes)
    besides = f" ({wanted - spare}, and {spare} spare)" if spare else ""
    verb = "is" if wanted == 1 else "are"
    asked = f"{counted(wanted, 'node')}{besides} with {_resources_text(each)} each {verb} wanted"
    if fitting >= wanted:
        return f"{asked}; the Ray cluster has {fitting} such, but others use them"
    shown = ", ".join(f"{node.address}: {_resources_text({name: node.resources.get(name, 0.0) for name in each})}"
                      for node in nodes[:_MAX_NODES_NAMED])  # fmt: skip
    more = ", ..." if len(nodes) > _MAX_NODES_NAMED else ""
    return f"{asked}, and the Ray cluster has {fitting} such ({shown}{more})"


def _resources_text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}{'' if amount == 1 else 's'}" for name, amount in resources.items())
