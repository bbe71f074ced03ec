"""Made-up machines: trees of /sys and /proc in which the kernel describes CPUs, NUMA nodes and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write_cpu(root: Path, number: int, *, package: int, siblings: str, cache: str) -> None:
    """Describe a CPU that is online.

    Args:
        root: root of the tree.
        number: its number.
        package: its socket.
        siblings: the CPUs of its core, as the kernel lists them.
        cache: the CPUs that share its level 3 cache.
    """
    folder = root / f"sys/devices/system/cpu/cpu{number}"
    (folder / "topology").mkdir(parents=True)
    (folder / "topology/physical_package_id").write_text(f"{package}\n")
    (folder / "topology/thread_siblings_list").write_text(f"{siblings}\n")
    caches = {0: (1, "Data", siblings), 1: (1, "Instruction", siblings), 2: (2, "Unified", siblings)}
    for index, (level, kind, shared) in (caches | {3: (3, "Unified", cache)}).items():
        entry = folder / f"cache/index{index}"
        entry.mkdir(parents=True)
        (entry / "level").write_text(f"{level}\n")
        (entry / "type").write_text(f"{kind}\n")
        (entry / "shared_cpu_list").write_text(f"{shared}\n")


def write_nodes(root: Path, cpus: Mapping[int, str]) -> None:
    """Describe the NUMA nodes that are online, with their CPUs, as the kernel lists them."""
    folder = root / "sys/devices/system/node"
    folder.mkdir(parents=True)
    (folder / "online").write_text(",".join(map(str, cpus)) + "\n")
    for node, listed in cpus.items():
        (folder / f"node{node}").mkdir()
        (folder / f"node{node}/cpulist").write_text(f"{listed}\n")


def write_gpus(root: Path, nodes: Sequence[int]) -> None:
    """Describe GPUs by the NUMA node of each, in the order of bus addresses; -1: the kernel does not say."""
    for index, node in enumerate(nodes):
        bus_id = f"0000:{index + 10:02X}:00.0"
        listed = root / "proc/driver/nvidia/gpus" / bus_id.lower()
        listed.mkdir(parents=True)
        (listed / "information").write_text(f"GPU UUID: \t GPU-{index:08x}\nDevice Minor: \t {index}\n")
        device = root / "sys/bus/pci/devices" / bus_id.lower()
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")


def two_sockets(root: Path, gpus: Sequence[int] = (), offline: frozenset[int] = frozenset()) -> Path:
    """Describe two sockets of two NUMA nodes, of four cores each that are two hyperthreads: 32 CPUs.

    Node n has the cores 4n to 4n+3, which are CPUs, and whose second hyperthreads are 16 higher. Each two cores share a
    cache.

    Args:
        root: root of the tree, which is returned.
        gpus: NUMA nodes of the GPUs.
        offline: CPUs that are switched off.
    """
    for node in range(4):
        for core in range(4 * node, 4 * node + 4):
            first = core - core % 2
            pair = [first, first + 1, first + 16, first + 17]
            for cpu in {core, core + 16} - offline:
                siblings = ",".join(str(each) for each in (core, core + 16) if each not in offline)
                cache = ",".join(str(each) for each in pair if each not in offline)
                write_cpu(root, cpu, package=node // 2, siblings=siblings, cache=cache)
    numbers = {node: (*range(4 * node, 4 * node + 4), *range(4 * node + 16, 4 * node + 20)) for node in range(4)}
    online = {node: [str(cpu) for cpu in cpus if cpu not in offline] for node, cpus in numbers.items()}
    write_nodes(root, {node: ",".join(cpus) for node, cpus in online.items()})
    write_gpus(root, gpus)
    return root
