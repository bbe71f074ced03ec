"""Decides on which CPUs each rank of a machine runs (`--numa-binding`), so that its memory is near its GPU. Pure.

The modes are torchrun's. What differs: cores are shared among the ranks of a NUMA node, not among its GPUs, and a rank
that cannot be bound runs unbound, where torchrun ends the job. Binding changes how fast a job is and nothing of what
it computes, so that a job that stands still for it would be the greater loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["node", "socket", "exclusive", "core-complex"]


@dataclass(frozen=True)
class Cpu:
    """One logical CPU that is online."""

    number: int
    node: int
    """its NUMA node"""
    package: int
    """its socket"""
    core: int
    """the smallest CPU of the same physical core: hyperthreads have this in common"""
    complex: int
    """the smallest CPU that shares its largest cache"""


@dataclass(frozen=True)
class Topology:
    """The CPUs of a machine, and where its GPUs are."""

    cpus: tuple[Cpu, ...]
    """the CPUs that are online, by number"""
    gpu_nodes: tuple[int | None, ...]
    """NUMA nodes of the GPUs, in the order in which local ranks take them; None: unknown"""


@dataclass(frozen=True)
class Binding:
    """On which CPUs the ranks of a machine run."""

    cpus: Mapping[int, frozenset[int]]
    """the CPUs by local rank; a rank that is not among the keys runs unbound"""
    problems: tuple[str, ...]
    """sentences on ranks that are not bound as they should be"""


def bind(mode: Mode, topology: Topology, allowed: frozenset[int], ranks: int) -> Binding:
    """Choose the CPUs of each rank.

    Args:
        mode: `node`: all CPUs of the NUMA node of the rank's GPU; `socket`: all of that node's socket; `exclusive`:
            physical cores of the node that no other rank has; `core-complex`: CPUs of the node that share a cache, by
            turns. Without GPUs, the ranks are spread over the NUMA nodes in order.
        topology: the CPUs and GPUs of the machine.
        allowed: the CPUs on which the ranks may run at all.
        ranks: number of ranks on the machine.
    """
    usable: dict[int, list[Cpu]] = {}
    for cpu in topology.cpus:
        if cpu.number in allowed:
            usable.setdefault(cpu.node, []).append(cpu)
    ranks_by_node: dict[int | None, list[int]] = {}
    for rank, node in enumerate(_nodes_of_ranks(topology, sorted(usable), ranks)):
        ranks_by_node.setdefault(node, []).append(rank)
    found: dict[int, frozenset[int]] = {}
    problems: list[str] = []
    for node, members in ranks_by_node.items():
        if node is None:
            problems.append(_unbound(members, "the system does not say on which NUMA node its GPU is"))
            continue
        cpus = _of_socket(topology, usable, node) if mode == "socket" else usable.get(node, [])
        if not cpus:
            problems.append(_unbound(members, f"none of the CPUs of NUMA node {node} may be used by this job"))
            continue
        groups = [[cpu.number for cpu in cpus]]
        if mode == "exclusive":
            cores = _grouped((cpu.core, cpu.number) for cpu in cpus)
            if len(cores) < len(members):
                problems.append(
                    f"local ranks {_listed(members)} have the CPUs of NUMA node {node} in common, because it has fewer"
                    f" cores for this job ({len(cores)}) than ranks (--numa-binding exclusive)"
                )
            else:
                groups = _shares(cores, len(members))
        elif mode == "core-complex":
            # The largest come first: a complex of which the job may use only some CPUs is the last choice.
            groups = sorted(_grouped((cpu.complex, cpu.number) for cpu in cpus), key=len, reverse=True)
        for position, rank in enumerate(members):
            found[rank] = frozenset(groups[position % len(groups)])
    return Binding(found, tuple(problems))


def _nodes_of_ranks(topology: Topology, usable: Sequence[int], ranks: int) -> list[int | None]:
    """Return the NUMA node of each local rank; None: unknown.

    Args:
        topology: the CPUs and GPUs.
        usable: the NUMA nodes with CPUs that may be used, in order.
        ranks: number of ranks.
    """
    gpus = topology.gpu_nodes
    if not gpus:
        return [usable[rank * len(usable) // ranks] if usable else None for rank in range(ranks)]
    nodes = sorted({cpu.node for cpu in topology.cpus})
    # A machine with a single node often does not say that a GPU is on it. With several nodes, the first would be a
    # guess, and all ranks would crowd there.
    unsaid = nodes[0] if len(nodes) == 1 else None
    of_ranks = [gpus[rank % len(gpus)] for rank in range(ranks)]
    return [unsaid if node is None else node for node in of_ranks]


def _of_socket(topology: Topology, usable: Mapping[int, Sequence[Cpu]], node: int) -> list[Cpu]:
    """Return the usable CPUs of the socket that a NUMA node belongs to."""
    packages = {cpu.package for cpu in topology.cpus if cpu.node == node}
    return [cpu for cpus in usable.values() for cpu in cpus if cpu.package in packages]


def _grouped(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return CPUs by group, in the order of the groups, from pairs of group and CPU."""
    groups: dict[int, list[int]] = {}
    for group, cpu in pairs:
        groups.setdefault(group, []).append(cpu)
    return [groups[group] for group in sorted(groups)]


def _shares(cores: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Divide cores into `count` shares of neighbours; the first shares have one core more if they do not divide."""
    each, more = divmod(len(cores), count)
    bounds = [index * each + min(index, more) for index in range(count + 1)]
    return [[cpu for core in cores[bounds[index] : bounds[index + 1]] for cpu in core] for index in range(count)]


def _unbound(ranks: Sequence[int], why: str) -> str:
    are = "rank {} is" if len(ranks) == 1 else "ranks {} are"
    return f"local {are.format(_listed(ranks))} not bound to CPUs: {why}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
