"""On which CPUs ranks run, decided from made-up topologies: 2 sockets of 2 NUMA nodes of 4 cores of 2 hyperthreads."""

from __future__ import annotations

import pytest

from ftlaunch.policy.numa_binding import Binding, Cpu, Mode, Topology, bind

ALL = frozenset(range(32))
MODES: tuple[Mode, ...] = ("node", "socket", "exclusive", "core-complex")


def cpu(number: int) -> Cpu:
    """Node n has the cores 4n to 4n+3, whose second hyperthreads are 16 higher; two cores share a cache."""
    core = number % 16
    return Cpu(number, node=core // 4, package=core // 8, core=core, complex=core - core % 2)


def machine(*gpu_nodes: int | None) -> Topology:
    return Topology(tuple(map(cpu, range(32))), gpu_nodes)


def chosen(binding: Binding) -> dict[int, list[int]]:
    return {rank: sorted(cpus) for rank, cpus in binding.cpus.items()}


def threads(*cores: int) -> list[int]:
    return sorted(cpu for core in cores for cpu in (core, core + 16))


def test_a_rank_has_all_cpus_of_the_node_of_its_gpu() -> None:
    assert bind("node", machine(1, 3), ALL, 2) == Binding(
        {0: frozenset(threads(4, 5, 6, 7)), 1: frozenset(threads(12, 13, 14, 15))}, ()
    )


def test_a_rank_has_all_cpus_of_the_socket_of_its_gpu() -> None:
    assert chosen(bind("socket", machine(1, 3), ALL, 2)) == {0: threads(*range(8)), 1: threads(*range(8, 16))}


def test_a_node_without_usable_cpus_has_those_of_its_socket() -> None:
    binding = bind("socket", machine(1), ALL - frozenset(threads(4, 5, 6, 7)), 1)
    assert chosen(binding) == {0: threads(0, 1, 2, 3)}


def test_ranks_of_a_node_share_its_cores_and_never_the_threads_of_one() -> None:
    binding = bind("exclusive", machine(0, 0, 2, 0), ALL, 4)
    assert chosen(binding) == {0: threads(0, 1), 1: threads(2), 3: threads(3), 2: threads(8, 9, 10, 11)}
    assert not binding.problems


def test_eight_gpus_on_two_nodes_have_a_share_each() -> None:
    cores = [number % 96 for number in range(192)]
    cpus = tuple(
        Cpu(number, node=core // 48, package=core // 48, core=core, complex=core // 8 * 8)
        for number, core in enumerate(cores)
    )
    topology = Topology(cpus, (0, 0, 0, 0, 1, 1, 1, 1))
    exclusive = chosen(bind("exclusive", topology, frozenset(range(192)), 8))
    assert [len(share) for share in exclusive.values()] == [24] * 8
    assert sorted(cpu for share in exclusive.values() for cpu in share) == list(range(192))
    assert exclusive[5] == [*range(60, 72), *range(156, 168)]
    complexes = chosen(bind("core-complex", topology, frozenset(range(192)), 8))
    assert complexes[1] == [*range(8, 16), *range(104, 112)]
    assert len({tuple(share) for share in complexes.values()}) == 8


def test_ranks_have_core_complexes_by_turns_the_largest_first() -> None:
    """Of node 0 the first complex has lost a CPU to somebody else."""
    binding = bind("core-complex", machine(0, 0, 0), ALL - {1}, 3)
    assert chosen(binding) == {0: threads(2, 3), 1: [0, 16, 17], 2: threads(2, 3)}


def test_only_cpus_that_may_be_used_are_chosen() -> None:
    allowed = frozenset({0, 1, 4, 20, 5})
    assert chosen(bind("node", machine(0, 1), allowed, 2)) == {0: [0, 1], 1: [4, 5, 20]}
    assert chosen(bind("exclusive", machine(1, 1), allowed, 2)) == {0: [4, 20], 1: [5]}


@pytest.mark.parametrize("mode", ["node", "exclusive", "core-complex"])
def test_a_node_of_which_nothing_may_be_used_leaves_its_ranks_unbound(mode: Mode) -> None:
    binding = bind(mode, machine(0, 2, 2), frozenset(range(8)), 3)
    assert set(binding.cpus) == {0}
    assert binding.problems == (
        "local ranks 1, 2 are not bound to CPUs: none of the CPUs of NUMA node 2 may be used by this job",
    )


def test_more_ranks_than_cores_have_the_node_in_common() -> None:
    binding = bind("exclusive", machine(0), frozenset({0, 16, 1}), 3)
    assert chosen(binding) == {0: [0, 1, 16], 1: [0, 1, 16], 2: [0, 1, 16]}
    (problem,) = binding.problems
    assert problem.startswith("local ranks 0, 1, 2 have the CPUs of NUMA node 0 in common, because it has fewer cores")


@pytest.mark.parametrize("mode", MODES)
def test_a_gpu_whose_node_is_unknown_leaves_its_rank_unbound(mode: Mode) -> None:
    """torchrun takes the first node for it, so that all ranks may crowd there."""
    binding = bind(mode, machine(None, 1), ALL, 2)
    assert set(binding.cpus) == {1}
    assert binding.problems == (
        "local rank 0 is not bound to CPUs: the system does not say on which NUMA node its GPU is",
    )


@pytest.mark.parametrize("mode", MODES)
def test_on_a_single_node_every_gpu_is_there(mode: Mode) -> None:
    topology = Topology(tuple(map(cpu, (0, 1, 2, 3))), (None, None))
    binding = bind(mode, topology, ALL, 2)
    expected = {"exclusive": {0: [0, 1], 1: [2, 3]}, "core-complex": {0: [0, 1], 1: [2, 3]}}
    assert chosen(binding) == expected.get(mode, {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]})


def test_without_gpus_ranks_are_spread_over_the_nodes_in_order() -> None:
    of_ranks = chosen(bind("node", machine(), ALL, 8))
    assert [of_ranks[rank][0] for rank in range(8)] == [0, 0, 4, 4, 8, 8, 12, 12]
    assert [cpus[0] for cpus in chosen(bind("node", machine(), ALL, 2)).values()] == [0, 8]
    assert [cpus[0] for cpus in chosen(bind("node", machine(), frozenset(range(4, 9)), 2)).values()] == [4, 8]


def test_ranks_beyond_the_gpus_begin_with_the_first_gpu_again() -> None:
    assert [cpus[0] for cpus in chosen(bind("node", machine(3, 1), ALL, 4)).values()] == [12, 12, 4, 4]


def test_nothing_usable_at_all_is_said() -> None:
    binding = bind("node", machine(), frozenset({100}), 2)
    assert binding.cpus == {}
    assert len(binding.problems) == 1
