"""A rank's snapshot as one copier describes it to another. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch.nodes.peers.plan.chunk_places import Runs
from ftlaunch.nodes.peers.plan.tensor_layout import SlotLayout


@dataclass(frozen=True, eq=False)
class DescribedSlot:
    """What there is of a rank's snapshot."""

    rank: int
    layouts: SlotLayout
    common: bytes
    own: Mapping[str, Runs]
    """group -> the chunks that the rank saves as its own"""
    present: Mapping[str, Runs] | None = None
    """group -> the chunks that are there; None: all"""
