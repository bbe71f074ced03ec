"""Copiers as processes, with the pages and slots of a node's ranks, made of plain bytes without torch."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.nodes.peers.copier_client import CopierLink
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Chunk, whole_chunk
from ftlaunch_contract.pages.page import NONE, Page, create_page, page_path
from tests.support.checkpoints import common, image
from tests.support.waiting import DEADLINE

TOKEN = "ab" * 32
_BLOCK = 1 << 20  # bytes after which content repeats
Tensors = Mapping[str, Mapping[Chunk, bytes]]
"""group -> the tensors of the group's file"""


class CopierNode:
    """A node: a directory in memory, the pages and slots of its ranks, and its copier process."""

    def __init__(
        self,
        number: int,
        memory: Path,
        ranks: range,
        bandwidth: int | None = None,
        token: str = TOKEN,
        address: str = "127.0.0.1",
    ) -> None:
        self.number = number
        self.memory = memory / str(number)
        self.ranks = ranks
        self.address = address
        self.memory.mkdir()
        self.pages = {}
        for rank in ranks:
            create_page(page_path(self.memory, rank))
            self.pages[rank] = Page(page_path(self.memory, rank))
        self.bandwidth = bandwidth
        self.token = token
        self.unread: list[dict[str, Any]] = []
        self.start()

    def start(self) -> None:
        self.link = CopierLink(HelperProcesses())
        about = {"address": self.address, "memory_dir": str(self.memory), "bandwidth": self.bandwidth}
        self.port = self.ask("begin", token=self.token, **about)["port"]

    # --- its copier ------------------------------------------------------------------------------------------

    def send(self, do: str, **more: Any) -> None:
        self.link.send({"do": do, **more})

    def receive(self, did: str, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait for the next answer of a kind, and return it; keep other answers."""
        deadline = time.monotonic() + seconds
        while True:
            for answer in self.unread:
                if answer["did"] == did:
                    self.unread.remove(answer)
                    return answer
            left = deadline - time.monotonic()
            assert left > 0, f"waited {seconds} s in vain for {did}"
            select.select([self.link.fd], [], [], left)
            answers = self.link.answers()
            assert answers is not None, "the copier is gone"
            self.unread += answers

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self.send(do, **more)
        return self.receive({"copy": "copied"}.get(do, do))

    def attempt(self, lineage: str = "one", world: int = 4, resumed: tuple[str, int] | None = None) -> None:
        count = len(self.ranks)
        first = self.ranks[0] if self.ranks else 0
        answer = self.ask("attempt", lineage=lineage, first=first, count=count, world=world, resumed=resumed)
        assert answer == {"did": "attempt"}

    def send_to(self, other: CopierNode | None, port: int | None = None) -> None:
        self.send("buddy", to=other and {**other.where, **({"port": port} if port else {})})

    @property
    def where(self) -> dict[str, Any]:
        return {"node": self.number, "address": self.address, "port": self.port}

    def freeze(self, lineage: str = "one") -> dict[str, list[int]]:
        """Return the copies of a lineage that the node keeps; the node takes no copies from now on."""
        found: dict[str, list[int]] = self.ask("freeze", lineage=lineage)["copies"]
        return found

    def fetch(
        self, step: int, ranks: Mapping[int, int], holders: list[CopierNode], suppliers: list[CopierNode]
    ) -> dict[str, Any]:
        sources = [node.where for node in holders]
        wanted = {str(rank): {"slot": slot, "from": sources} for rank, slot in ranks.items()}
        about = {"lineage": "one", "step": step, "world": 4}
        return self.ask("fetch", **about, ranks=wanted, suppliers=[node.where for node in suppliers])

    def kill(self) -> None:
        os.kill(self.link.pid, signal.SIGKILL)
        self.link.close(DEADLINE)

    def close(self) -> None:
        if not self.link.closed:
            self.link.close(DEADLINE)
        for page in self.pages.values():
            page.close()

    # --- its ranks ---------------------------------------------------------------------------------------------

    def slot(self, rank: int, slot: int) -> Path:
        return layout.slot_dir(self.memory, rank, slot)

    def write(self, rank: int, slot: int, step: int, tensors: Tensors) -> None:
        """Write a snapshot of one rank, as the rank commits it."""
        directory = self.slot(rank, slot)
        directory.mkdir(exist_ok=True)
        self.pages[rank].set_slot(slot, NONE)
        for group in layout.GROUPS:
            os.close(image(layout.slot_file(directory, group), dict(tensors.get(group, {}))))
        (directory / layout.COMMON).write_bytes(common(step, rank=rank))
        self.pages[rank].set_slot(slot, step)

    def snapshot(self, step: int, slot: int, kind: str, size: int = 4096) -> None:
        """Write a snapshot of all ranks of the node. kind: `ddp` or `fsdp`."""
        for place, rank in enumerate(self.ranks):
            make = {"ddp": replicated, "fsdp": sharded}[kind]
            self.write(rank, slot, step, make(rank, place, len(self.ranks), step, size))


def content(what: str, size: int) -> bytes:
    block = random.Random(what).randbytes(min(size, _BLOCK))
    return (block * -(-size // _BLOCK))[:size]


def replicated(rank: int, place: int, ranks: int, step: int, size: int) -> Tensors:
    """Return a rank's tensors as under DDP.

    The ranks of each node share out all weights, and each rank has small tensors of its own.
    """
    shared = {
        whole_chunk(f"layer.{number}.weight", "F32", (size // 4,)): content(f"{number} {step}", size // 4 * 4)
        for number in range(8)
        if number % ranks == place
    }
    own = "" if rank == 0 else f"@{rank}"
    return {"model": shared, "opt": {whole_chunk(f"rng.cpu{own}", "U8", (5056,)): content(f"rng {rank} {step}", 5056)}}


def sharded(rank: int, place: int, ranks: int, step: int, size: int) -> Tensors:
    """Return a rank's tensors as under FSDP over all ranks of the job: no other rank holds any part of them."""
    groups = {}
    for group in layout.GROUPS:
        shard = Chunk(f"{group}.flat", "U8", (size,), f"{group}.flat", (rank * size,), (4 * size,))
        groups[group] = {shard: content(f"{group} {rank} {step}", size)}
    return groups


def same_files(one: Path, other: Path) -> bool:
    """Return whether two slots hold the same files, byte for byte."""
    names = {path.name for path in one.iterdir()}
    return names == {path.name for path in other.iterdir()} and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )
