"""What Ray has no room for, said in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftlaunch.common.formatting import counted

_SHOWN = 8  # nodes that a sentence names


class RayNode(NamedTuple):
    """A node of a Ray cluster, and all that it has, whoever uses it."""

    address: str
    resources: Mapping[str, float]


def why_not(bundles: Sequence[Mapping[str, float]], spare: int, nodes: Sequence[RayNode]) -> str:
    """Why the bundles, which are alike, have no place yet: what is wanted, and what there is."""
    each, wanted = bundles[0], len(bundles)
    fitting = sum(all(node.resources.get(name, 0.0) >= amount for name, amount in each.items()) for node in nodes)
    besides = f" ({wanted - spare}, and {spare} spare)" if spare else ""
    asked = f"{counted(wanted, 'node')}{besides} with {_said(each)} each {'is' if wanted == 1 else 'are'} wanted"
    if fitting >= wanted:
        return f"{asked}; the Ray cluster has {fitting} such, but others use them"
    shown = ", ".join(f"{node.address}: {_said({name: node.resources.get(name, 0.0) for name in each})}"
                      for node in nodes[:_SHOWN])  # fmt: skip
    more = ", ..." if len(nodes) > _SHOWN else ""
    return f"{asked}, and the Ray cluster has {fitting} such ({shown}{more})"


def _said(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}{'' if amount == 1 else 's'}" for name, amount in resources.items())
