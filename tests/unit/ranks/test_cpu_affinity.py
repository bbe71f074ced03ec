"""Topologies read from made-up trees of /sys and /proc, and what is said where one cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.topologies import two_sockets, write_cpu, write_gpus, write_nodes

from ftlaunch.policy.numa_binding import Cpu
from ftlaunch.ranks.cpu_affinity import CpuAffinity, read_topology


def test_two_sockets_of_two_nodes_are_read(tmp_path: Path) -> None:
    topology = read_topology(None, two_sockets(tmp_path, gpus=[1, 0, -1]))
    assert [cpu.number for cpu in topology.cpus] == list(range(32))
    assert topology.cpus[22] == Cpu(22, node=1, package=0, core=6, complex=6)
    assert topology.cpus[9] == Cpu(9, node=2, package=1, core=9, complex=8)
    assert topology.gpu_nodes == (1, 0, None)


def test_cpus_that_are_switched_off_are_left_out(tmp_path: Path) -> None:
    topology = read_topology(None, two_sockets(tmp_path, offline=frozenset({0, 5, 21})))
    assert [cpu.number for cpu in topology.cpus if cpu.node < 2] == [1, 2, 3, 4, 6, 7, 16, 17, 18, 19, 20, 22, 23]
    assert next(cpu for cpu in topology.cpus if cpu.number == 16) == Cpu(16, node=0, package=0, core=16, complex=1)


@pytest.mark.parametrize(
    ("visible", "nodes"),
    [
        ("3,0", (1, 0)),
        ("GPU-00000002,GPU-00000001", (1, 0)),
        ("", ()),
        ("MIG-1", (None,)),
    ],
)
def test_gpus_are_those_that_ranks_see_in_their_order(tmp_path: Path, visible: str, nodes: tuple[int, ...]) -> None:
    assert read_topology(visible, two_sockets(tmp_path, gpus=[0, 0, 1, 1])).gpu_nodes == nodes


def test_gpus_without_a_device_file_belong_to_other_containers(tmp_path: Path) -> None:
    root = two_sockets(tmp_path, gpus=[0, 1, 2, 3])
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia2", "nvidia3"):
        (root / "dev" / name).touch()
    assert read_topology(None, root).gpu_nodes == (2, 3)


def test_a_machine_that_describes_no_caches_has_one_complex_for_each_cpu(tmp_path: Path) -> None:
    topology = tmp_path / "sys/devices/system/cpu/cpu3/topology"
    topology.mkdir(parents=True)
    (topology / "physical_package_id").write_text("-1\n")
    (topology / "thread_siblings_list").write_text("3\n")
    write_nodes(tmp_path, {0: "3"})
    assert read_topology(None, tmp_path).cpus == (Cpu(3, node=0, package=-1, core=3, complex=3),)


def test_a_node_without_cpus_has_memory_only(tmp_path: Path) -> None:
    write_cpu(tmp_path, 0, package=0, siblings="0", cache="0")
    write_nodes(tmp_path, {0: "0", 2: ""})
    write_gpus(tmp_path, [0])
    assert len(read_topology(None, tmp_path).cpus) == 1


def test_ranks_are_bound_to_cpus_that_this_process_may_use(tmp_path: Path) -> None:
    said: list[str] = []
    here = sorted(os.sched_getaffinity(0))
    for cpu in here:
        write_cpu(tmp_path, cpu, package=0, siblings=str(cpu), cache=str(cpu))
    write_nodes(tmp_path, {0: f"{here[0]},{here[-1] + 1}"})
    write_cpu(tmp_path, here[-1] + 1, package=0, siblings=str(here[-1] + 1), cache="0")
    assert CpuAffinity("node", said.append, tmp_path).choose(1, {}) == {0: frozenset(here[:1])}
    assert not said


def test_a_topology_that_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    affinity = CpuAffinity("node", said.append, tmp_path)
    assert [affinity.choose(2, {}), affinity.choose(2, {})] == [{}, {}]
    (sentence,) = said
    assert sentence.startswith("ranks are not bound to CPUs (--numa-binding): cannot read which the machine has: ")
    assert "node/online" in sentence


def test_a_description_that_makes_no_sense_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    write_nodes(tmp_path, {0: "zero"})
    assert CpuAffinity("node", said.append, tmp_path).choose(2, {}) == {}
    assert "invalid literal" in said[0]


def test_a_driver_that_does_not_list_its_gpus_holds_nothing_up(tmp_path: Path) -> None:
    """A pipe without a writer is what a file of a driver that hangs looks like."""
    root = two_sockets(tmp_path, gpus=[0])
    information = next((root / "proc/driver/nvidia/gpus").iterdir()) / "information"
    information.unlink()
    os.mkfifo(information)
    said: list[str] = []
    assert CpuAffinity("node", said.append, root, patience_seconds=0.2).choose(1, {}) == {}
    assert "its file system has not answered" in said[0]
    os.close(os.open(information, os.O_RDWR))  # lets the thread go


def test_without_the_option_nothing_is_read(tmp_path: Path) -> None:
    said: list[str] = []
    assert CpuAffinity(None, said.append, tmp_path / "none").choose(2, {}) == {}
    assert not said
