"""Reads files directly into tensors' memory, by pread in several threads.

Copying out of a mapping costs a page fault every few KiB, which takes as long as the copy itself, and a single
thread leaves most of the memory's bandwidth unused. What goes to an accelerator goes through pinned memory
(staged_read.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.progress import Advance, ignore
from ftlaunch_hooks.devices.device_port import is_on_device
from ftlaunch_hooks.storage.file_reads import SHARE_BYTES, Read, read_into, shares_of
from ftlaunch_hooks.storage.staged_read import StagedReads
from ftlaunch_hooks.tensors.memory_layout import is_memory_of_values

_MAX_THREADS = 8


def can_fill(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read into its memory as they were saved, of the host or of an accelerator."""
    return tensor.device.type != "meta" and is_memory_of_values(tensor)


class Filling:
    """A set of reads that are done together. The tensors must live until `run` has returned."""

    def __init__(self, advance: Advance = ignore) -> None:
        """Begin with no reads. advance: told the number of bytes that are read, from several threads."""
        self._advance = advance
        self._reads: dict[tuple[torch.device, int], Read] = {}  # by address: tied tensors are read once

    def add(self, path: Path, offset: int, tensor: Tensor) -> None:
        """Plan to fill `tensor`, which `can_fill` accepts, with a file's bytes from `offset` on."""
        address = tensor.device, tensor.data_ptr()
        known = self._reads.get(address)
        # A view may begin at the same address as the whole tensor; the longer read covers both.
        if tensor.nbytes and (known is None or known.size <= tensor.nbytes):
            self._reads[address] = Read(path, offset, tensor, 0, tensor.nbytes)

    def run(self) -> None:
        """Do all reads. Raises OSError, and Damaged where a file is too short."""
        threads = _threads()
        here = [read for read in self._reads.values() if not is_on_device(read.target)]
        if threads == 1 or sum(read.size for read in here) <= SHARE_BYTES:
            for share in shares_of(here):
                self._bring_and_tell(_read_share, share)
        else:
            self._run_in_threads(here, _read_share, threads)
        if on_devices := [read for read in self._reads.values() if is_on_device(read.target)]:
            with StagedReads(on_devices, threads) as staged:
                self._run_in_threads(on_devices, staged.bring, threads)

    def _run_in_threads(self, reads: list[Read], bring: Callable[[Sequence[Read]], None], threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda share: self._bring_and_tell(bring, share), shares_of(reads)))

    def _bring_and_tell(self, bring: Callable[[Sequence[Read]], None], share: Sequence[Read]) -> None:
        bring(share)
        self._advance(sum(read.size for read in share))


def share_of_threads(own_cpus: int, job_cpus: int, ranks: int) -> int:
    """Return how many threads a rank reads with, while all ranks of its node restore together.

    Args:
        own_cpus: number of CPUs that this rank may use. Ranks may share them, or be bound to some each
            (`--numa-binding`).
        job_cpus: number of CPUs that all ranks of the node may use together.
        ranks: number of ranks on the node.
    """
    return min(_MAX_THREADS, own_cpus, max(1, job_cpus // ranks))


def _threads() -> int:
    own_cpus = job_cpus = len(os.sched_getaffinity(0))
    with suppress(ProcessLookupError):  # it has just died
        # Where each rank is bound to CPUs of its own, the process that has started the ranks is not.
        job_cpus = len(os.sched_getaffinity(os.getppid()))
    return share_of_threads(own_cpus, job_cpus, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _read_share(share: Sequence[Read]) -> None:
    read_into(share, [read.target.data_ptr() + read.begin for read in share])
