"""What the kernel says and counts, read from stand-ins for its files: and nothing, where they cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftlaunch.system.kernel_log import Kernel, oom_counters

V2 = "30 29 0:26 {root} {place} rw,nosuid shared:4 - cgroup2 cgroup2 rw"
V1 = "31 29 0:27 {root} {place} rw,nosuid shared:5 - cgroup cgroup rw,memory"
V1_CPU = "32 29 0:28 {root} {place} rw,nosuid shared:6 - cgroup cgroup rw,cpu"


class Machine:
    """A folder like /proc/self, one like a cgroup's, and a kernel log."""

    def __init__(self, place: Path, mount: str, groups: str, counter: Path, root: str = "/") -> None:
        self.proc, self.cgroup, self.kmsg = place / "proc", place / "cgroup", place / "kmsg"
        self.proc.mkdir()
        (self.proc / "cgroup").write_text(groups)
        (self.proc / "mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/sda rw\n{mount}\n".format(
            root=root, place=self.cgroup))  # fmt: skip
        self.counter = self.cgroup / counter
        self.counter.parent.mkdir(parents=True, exist_ok=True)
        self.count(3)
        self.kmsg.write_text("6,1,100,-;an old line\n")

    def count(self, killed: int) -> None:
        self.counter.write_text(f"low 0\noom 9\noom_kill {killed}\noom_group_kill 0\n")

    def kernel(self) -> Kernel:
        return Kernel(self.proc, self.kmsg)


@pytest.fixture(params=["v2", "v2 in a container", "v1", "hybrid"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    if request.param == "v2":
        return Machine(tmp_path, V2, "0::/user/job\n", Path("user/job/memory.events"))
    if request.param == "v2 in a container":
        return Machine(tmp_path, V2, "0::/docker/4711/job\n", Path("job/memory.events"), root="/docker/4711")
    if request.param == "v1":
        return Machine(tmp_path, f"{V1_CPU}\n{V1}", "5:cpu,cpuacct:/\n4:memory:/job\n", Path("job/memory.oom_control"))
    return Machine(tmp_path, f"{V1}\n{V2}", "4:memory:/job\n0::/\n", Path("job/memory.oom_control"))


def test_a_counter_that_moves_is_heard(machine: Machine) -> None:
    assert oom_counters(machine.proc) == [machine.counter]
    kernel = machine.kernel()
    assert kernel.read_news() == ""
    machine.count(5)
    assert kernel.read_news() == f"oom_kill of cgroup {machine.counter.parent} went from 3 to 5"
    kernel.begin()
    assert kernel.read_news() == ""
    kernel.close()


def test_only_new_lines_of_the_log_are_heard(machine: Machine) -> None:
    """A pipe gives no records, but like the kernel it gives what is there and then EAGAIN."""
    machine.kmsg.unlink()
    os.mkfifo(machine.kmsg)
    kernel = machine.kernel()
    with machine.kmsg.open("w") as log:
        log.write("4,2,200,-;NVRM: Xid (PCI:0000:4b:00): 79\n SUBSYSTEM=pci\n")
        log.flush()
        assert kernel.read_news() == "NVRM: Xid (PCI:0000:4b:00): 79"
        assert kernel.read_news() == ""
    kernel.close()


def test_what_cannot_be_read_is_not_known_and_nothing_else(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path / "no proc", tmp_path / "no kmsg")
    assert kernel.read_news() == ""
    kernel.close()


def test_nonsense_is_not_known_either(machine: Machine) -> None:
    machine.counter.write_text("oom_kill many\n")
    (machine.proc / "mountinfo").write_text("no mounts here\n")
    (machine.proc / "cgroup").write_text("neither: groups\n")
    assert machine.kernel().read_news() == ""


def test_a_counter_that_goes_away_is_no_kill(machine: Machine) -> None:
    kernel = machine.kernel()
    machine.counter.unlink()
    assert kernel.read_news() == ""


def test_the_kernel_at_hand() -> None:
    kernel = Kernel()
    assert "an old line" not in kernel.read_news()
    kernel.close()
