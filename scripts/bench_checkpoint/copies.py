"""Measures snapshots, saving and both restores against plain copies of the same bytes, in turn."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from states import Trained

import ftlaunch_hooks as ft
from ftlaunch_contract.checkpoint import layout, verify, writer
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader
from ftlaunch_hooks.tensors.mapped import MappedFile

_STEP = 0  # the step of all snapshots taken here, because attach() has made no other


class Bench:
    """One rank's measurements.

    They use private parts of Job, because snapshots without training have no public interface.
    """

    def __init__(self, trained: Trained, job: ft.Job, home: Path) -> None:
        self.trained = trained
        self.home = home
        self.state = job._state
        self.snapshots = job._snapshots
        self.coordinator = job._coordinator
        self.lead = self.coordinator.rank == 0
        owned = [item.tensor for item in self.state.collect().items if item.owned]
        self.pairs = {
            "share": ([torch.empty_like(tensor) for tensor in owned], owned),
            "state": ([torch.empty_like(tensor) for tensor in trained.tensors()], trained.tensors()),
        }
        self.checkpoints = home / "checkpoints"
        self.buffer = bytearray(8 << 20)
        self.landing = torch.zeros(max(tensor.nbytes for tensor in trained.tensors()), dtype=torch.uint8)

    # --- what is measured ---------------------------------------------------------------------------------

    def copy(self, what: str) -> None:
        """Copy the bytes that this rank saves (`share`), or the whole state (`state`)."""
        for target, source in zip(*self.pairs[what], strict=True):
            target.copy_(source)

    def snapshot(self) -> None:
        """Take a snapshot with nothing running beside it."""
        self.snapshots.capture(_STEP)
        self.snapshots.settle()

    def slots(self) -> list[Path]:
        """Return the slot of each rank with the newest snapshot."""
        numbers = [page.slot_steps().index(_STEP) for page in self.coordinator.peers]
        return [layout.slot_dir(self.coordinator.memory_dir, rank, number) for rank, number in enumerate(numbers)]

    def persist(self) -> None:
        """Write a checkpoint of all ranks, as the saver does."""
        target = writer.SaveTarget(
            checkpoint_dir=self.checkpoints,
            step=_STEP,
            why="request",
            prefix="bench",
            world_size=self.coordinator.world_size,
        )
        writer.prepare(target)
        for rank, slot in enumerate(self.slots()):
            writer.write_shard_of(target, rank, slot)
        writer.commit(target)

    def cp(self) -> None:
        """Copy the same files by cp, and call fsync on each copy."""
        to = self.home / "cp"
        for rank, slot in enumerate(self.slots()):
            (to / str(rank)).mkdir(parents=True)
            subprocess.run(["cp", "--reflink=never", "-r", f"{slot}/.", to / str(rank)], check=True)
        for path in to.rglob("*"):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    def map_and_copy(self) -> None:
        """Copy the bytes of all slots out of new mappings, as a process that has just started must."""
        for slot in self.slots():
            for group in layout.GROUPS:
                file = MappedFile(layout.slot_file(slot, group))
                for chunk, offset in zip(file.chunks, file.offsets, strict=True):
                    size = chunk.nbytes
                    self.landing[:size].copy_(file.tensor(chunk, offset).reshape(-1).view(torch.uint8))

    def restore_from_memory(self) -> None:
        """Restore the state from memory into the tensors in use."""
        numbers = {rank: page.slot_steps().index(_STEP) for rank, page in enumerate(self.coordinator.peers)}
        self.state.restore(MemoryReader(self.coordinator.memory_dir, _STEP, self.coordinator.world_size, numbers))

    def restore_from_storage(self) -> None:
        """Verify the checkpoint and restore the state from it."""
        directory = layout.iteration_dir(self.checkpoints, _STEP)
        verify.verify(directory)
        self.state.restore(CheckpointReader(directory))

    def read(self) -> None:
        """Read all bytes of the checkpoint, and nothing else."""
        for path in layout.iteration_dir(self.checkpoints, _STEP).iterdir():
            with path.open("rb", buffering=0) as file:
                while file.readinto(self.buffer):
                    pass

    # --- in turn ------------------------------------------------------------------------------------------

    def time(self, work: Callable[[], None]) -> float:
        """Return the seconds until the slowest rank is done."""
        dist.barrier()
        began = time.perf_counter()
        work()
        dist.barrier()
        return time.perf_counter() - began

    def time_alone(self, work: Callable[[], None]) -> float:
        """Return the seconds that rank 0 takes while the others wait."""
        return self.time(work if self.lead else lambda: None)

    def evict(self) -> None:
        """Drop the checkpoint from the page cache."""
        if self.lead:
            for path in layout.iteration_dir(self.checkpoints, _STEP).iterdir():
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
        dist.barrier()

    def round(self, number: int) -> dict[str, float]:
        """Measure everything once; what is compared swaps places from round to round."""
        found: dict[str, float] = {}
        pairs: list[dict[str, Callable[[], float]]] = [
            {
                "copy of a rank's share": lambda: self.time(lambda: self.copy("share")),
                "snapshot": lambda: self.time(self.snapshot),
            },
            {
                "copy of the state": lambda: self.time(lambda: self.copy("state")),
                "mapping and copying": lambda: self.time(self.map_and_copy),
                "restore from memory": lambda: self.time(self.restore_from_memory),
            },
            {
                "cp and fsync": lambda: self.time_alone(self.cp),
                "persisting": lambda: self.time_alone(self.persist),
            },
            {
                "reading, cold": lambda: self.cold(self.read),
                "verified restore from storage, cold": lambda: self.cold(self.restore_from_storage),
            },
            {
                "reading, cached": lambda: self.time_alone(self.read),
                "verified restore from storage, cached": lambda: self.time_alone(self.restore_from_storage),
            },
        ]
        for pair in pairs:
            for name, measured in list(pair.items())[:: 1 if number % 2 else -1]:
                found[name] = measured()
        if self.lead:
            shutil.rmtree(self.home / "cp")
            shutil.rmtree(self.checkpoints)
        return found

    def cold(self, work: Callable[[], None]) -> float:
        """Return the seconds of rank 0 alone with nothing in the page cache."""
        self.evict()
        return self.time_alone(work)


def measure(trained: Trained, job: ft.Job, home: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of each measurement by round, and the bytes of the state, of a rank's share, and of a slot."""
    bench = Bench(trained, job, home)
    for _ in range(4):  # the first snapshot into each slot lays the slot out
        bench.time(bench.snapshot)
    measured = [bench.round(number) for number in range(rounds + 1)][1:]
    directories = [path for path in bench.coordinator.memory_dir.glob("slot_*") if path.is_dir()]
    used = sum(file.stat().st_blocks * 512 for path in directories for file in path.iterdir())
    return {
        "state_bytes": sum(tensor.nbytes for tensor in trained.tensors()),
        "share_bytes": sum(tensor.nbytes for tensor in bench.pairs["share"][0]),
        "slot_bytes": used * bench.coordinator.world_size // len(directories),
        "slots": len(directories) // bench.coordinator.world_size,
        "seconds": {name: [entry[name] for entry in measured] for name in measured[0]},
    }
