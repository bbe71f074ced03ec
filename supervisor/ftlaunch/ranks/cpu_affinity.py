"""Finds out on which CPUs the ranks of this machine are to run, from what the kernel says in /sys and /proc.

Which GPU a rank takes follows from the driver's list in /proc, in the order of bus addresses, and from
CUDA_VISIBLE_DEVICES, as for the names of GPUs in metrics (`system/device_names.py`). NVML is not asked: its answer may
take seconds, and the ranks cannot start before the CPUs are known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ftlaunch.policy.numa_binding import Cpu, Mode, Topology, bind
from ftlaunch.system.device_names import visible_gpus
from ftlaunch.system.file_thread import FileThread

_PATIENCE_SECONDS = 5.0
"""that reading the topology may take; a driver whose GPU has fallen off the bus may not list its GPUs for minutes"""


class CpuAffinity:
    """Chooses the CPUs of the ranks of one job on this machine, before each attempt."""

    def __init__(
        self,
        mode: Mode | None,
        say: Callable[[str], None],
        root: Path = Path("/"),
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """Read nothing yet.

        Args:
            mode: value of `numa_binding`; None binds no rank.
            say: shows a sentence to the user.
            root: root of the file system in which the kernel describes the machine.
            patience_seconds: time that reading the topology may take.
        """
        self._patience_seconds = patience_seconds
        self._mode = mode
        self._say = say
        self._root = root
        self._files: FileThread | None = None  # reads the topology; made when it is needed
        self._said: set[str] = set()

    def choose(
        self, ranks: int, environ: Mapping[str, str], while_waiting: Callable[[], None] | None = None
    ) -> Mapping[int, frozenset[int]]:
        """Return the CPUs by local rank; ranks that are missing run unbound, and the user is told why, once.

        The CPUs are among those that this process may use at this moment, because a cgroup may have changed them.

        Args:
            ranks: number of ranks on this machine.
            environ: environment of the ranks, of which CUDA_VISIBLE_DEVICES counts.
            while_waiting: called every fifth of a second while the topology is read.
        """
        if self._mode is None:
            return {}
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        try:
            if self._files is None:
                self._files = FileThread(self._root / "proc/driver/nvidia")
            topology = self._files.call(
                lambda: read_topology(visible, self._root), patience=self._patience_seconds, while_waiting=while_waiting
            )
        except (OSError, ValueError) as error:
            self._say_once(f"ranks are not bound to CPUs (--numa-binding): cannot read which the machine has: {error}")
            return {}
        binding = bind(self._mode, topology, frozenset(os.sched_getaffinity(0)), ranks)
        for problem in binding.problems:
            self._say_once(problem)
        return binding.cpus

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


def read_topology(visible: str | None, root: Path = Path("/")) -> Topology:
    """Read which CPUs a machine has, and on which NUMA nodes its GPUs are.

    Args:
        visible: value of CUDA_VISIBLE_DEVICES; None if the variable is not set.
        root: root of the file system.

    Raises:
        OSError: the kernel does not describe the CPUs.
        ValueError: a description cannot be understood.
    """
    cpus = [
        _read_cpu(root / "sys/devices/system/cpu" / f"cpu{number}", number, node)
        for node, numbers in _cpus_by_node(root / "sys/devices/system/node")
        for number in numbers
    ]
    gpus = [_node_of(root / "sys/bus/pci/devices", gpu.bus_id) for gpu in visible_gpus(visible, root)]
    return Topology(tuple(sorted(cpus, key=lambda cpu: cpu.number)), tuple(gpus))


def _cpus_by_node(folder: Path) -> Iterator[tuple[int, list[int]]]:
    """Yield each NUMA node that is online, with its CPUs that are online. Raises OSError or ValueError."""
    for node in _numbers((folder / "online").read_text()):
        yield node, _numbers((folder / f"node{node}" / "cpulist").read_text())


def _read_cpu(folder: Path, number: int, node: int) -> Cpu:
    """Read the place of a CPU. Raises OSError or ValueError."""
    topology = folder / "topology"
    return Cpu(
        number=number,
        node=node,
        package=int((topology / "physical_package_id").read_text()),
        core=min(_numbers((topology / "thread_siblings_list").read_text())),
        complex=min(_sharing_largest_cache(folder / "cache"), default=number),
    )


def _sharing_largest_cache(folder: Path) -> list[int]:
    """Return the CPUs that share the data cache of the highest level; none if caches are not described."""
    found: list[int] = []
    highest = 0
    for cache in sorted(folder.glob("index[0-9]*")):
        level = int((cache / "level").read_text())
        if level > highest and (cache / "type").read_text().strip() != "Instruction":
            highest = level
            found = _numbers((cache / "shared_cpu_list").read_text())
    return found


def _node_of(devices: Path, bus_id: str) -> int | None:
    """Return the NUMA node of a device on the PCI bus; None if the kernel does not say. Raises ValueError."""
    with suppress(OSError):
        node = int((devices / bus_id.lower() / "numa_node").read_text())
        return node if node >= 0 else None
    return None


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list of the kernel's: `0-2,4`. Raises ValueError."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found
