"""Keep the newest steps of one MindSpore rank as snapshots in memory.

KeptJob and its Boundary call everything here on the training thread, at step boundaries, while training waits. The
order in which a snapshot is taken is that of RankSnapshots; here is how MindSpore's state is collected and copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ftlaunch_contract.checkpoint import health_mark
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.snapshots.rank_snapshots import RankSnapshots, Snapshot
from ftlaunch_mindspore.saving.slot import ArraySlot, Groups, bytes_needed


class ArrayState(NamedTuple):
    """The state of one moment."""

    groups: Groups
    """arrays, which are not written yet"""
    trees: dict[str, Any]
    """the rest, by the names of attached objects, for common.json"""


Collect = Callable[[], ArrayState]
"""Returns the state of the moment in which it is called."""


class MindSporeSnapshots(RankSnapshots[ArraySlot, ArrayState]):
    """The snapshots of one rank. Each is written before training goes on."""

    def __init__(self, coordinator: Coordinator, collect: Collect, versions: Mapping[str, str], base: int) -> None:
        """Take over the slots of the attempt before.

        Args:
            coordinator: who decides for this rank.
            collect: returns the state to save.
            versions: name -> version of the libraries in use, for common.json.
            base: the step that all ranks restored from memory, or NONE.
        """
        super().__init__(
            ArraySlot,
            page=coordinator.page,
            peers=coordinator.peers,
            directory=coordinator.memory_dir,
            rank=coordinator.rank,
            node=coordinator.node,
            base=base,
            storage=coordinator.storage_slots,
        )
        self._collect_now = collect
        self._versions = versions

    def _measure(self, step: int) -> int:
        return bytes_needed(self._collect_now().groups)

    def _collect(self, step: int) -> ArrayState:
        state = self._collect_now()
        self.budget.noticed(bytes_needed(state.groups))
        return state

    def _copy(self, number: int, new: Snapshot[ArrayState]) -> None:
        self.slots[number].write(new.state.groups)
        self.commit(number, new)

    def _common_json(self, slot: ArraySlot, new: Snapshot[ArrayState]) -> bytes:
        common = {
            "step": new.step,
            health_mark.KEY: slot.health(new.trouble, checks_parameters=new.hold is not None),
            "consumed_samples": new.consumed,
            "versions": self._versions,
            "state": new.state.trees,
        }
        return json.dumps(common).encode()
