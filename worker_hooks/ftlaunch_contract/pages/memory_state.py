"""How much memory the ranks of a node have agreed on for snapshots, and the sentence that warns of too little.

`Memory` is a record in the page of the node's first rank. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from ftlaunch_contract.protocol import MEMORY_SLOTS


class Memory(NamedTuple):
    """The ranks' agreement on how many snapshots fit into the memory of their node."""

    slots: int  # slots in memory; 0: the only slot is on storage, and only snapshots for the saver are taken
    interval: int  # steps between snapshots; 0: only snapshots for the saver are taken
    needed: int  # bytes of one snapshot of all ranks; 0 before the ranks have agreed
    room: int  # bytes that snapshots may take

    @property
    def reduced(self) -> bool:
        """Whether there are fewer slots than the job needs, which without an interval is one slot, for the saver."""
        return self.slots < (MEMORY_SLOTS if self.interval else 1)


def reduced_memory(memory: Memory) -> str:
    """Return a sentence for users on why there are too few slots and what that costs after a crash."""
    mib = 1 << 20
    why = f"a snapshot of all ranks takes {-(-memory.needed // mib)} MiB, there are {memory.room // mib} MiB for them"
    if memory.slots > 1:
        cost = "a crash in mid-copy while a checkpoint is being saved costs the steps since that checkpoint's"
        return f"memory holds {memory.slots} snapshots instead of {MEMORY_SLOTS} ({why}): {cost}"
    if memory.slots == 1:
        cost = f"a crash costs up to {memory.interval} steps, in mid-copy all since the newest checkpoint"
        return f"memory holds one snapshot, overwritten every {memory.interval} steps ({why}): {cost}"
    cost = "a crash, or a stop that the ranks do not follow, costs the steps since the newest checkpoint"
    return f"no room for snapshots in memory ({why}): the state is laid on storage at checkpoints only; {cost}"
