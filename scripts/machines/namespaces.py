"""Machines made of namespaces: each has its own network, host name, processes and /dev/shm; the rest is shared.

Everything depends on the first process of each machine: when that process ends, the kernel kills all that runs on the
machine, and removes the network. The first process ends with the process that has made it, however the latter ends.
The switch between the machines is such a machine, too, so that nothing is seen or left behind on the host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

LINK = "eth0"  # the name of a machine's network interface
_NET = "10.77.0"
_REAPER = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); sys.stdin.read()"
_FIRST = f"""
mount -t tmpfs -o size=8g tmpfs /dev/shm && echo "$0" > /proc/sys/kernel/hostname && ip link set lo up && echo ready
exec "$1" -IS -c '{_REAPER}'
"""
_TOOLS = ("ip", "unshare", "nsenter")


class CannotIsolate(Exception):
    """Namespaces cannot be made here; the message says why."""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotIsolate(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


class Process:
    """A program on a machine. Its exit code is that of the process on the host that waits for the program."""

    def __init__(self, waiting: subprocess.Popen[Any]) -> None:
        self._waiting = waiting

    @property
    def pid(self) -> int:
        """The program's pid on the host, or 0 if the program has ended or not begun."""
        waiting = self._waiting.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{waiting}/task/{waiting}/children").read_text().split()
            return int(children[0]) if children else 0
        return 0

    def poll(self) -> int | None:
        """Return the exit code once the program has ended."""
        return self._waiting.poll()

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the end; return the exit code. Raises subprocess.TimeoutExpired."""
        return self._waiting.wait(seconds)

    def send_signal(self, signum: int) -> None:
        """Send a signal to the program."""
        if pid := self.pid:
            os.kill(pid, signum)

    def goes_on(self) -> None:
        """Continue the process that waits for the program, and that stops when the program stops."""
        if self._waiting.poll() is None:
            self._waiting.send_signal(signal.SIGCONT)


class _Space:
    """A first process in namespaces of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._first = subprocess.Popen(
            ["unshare", "-n", "-u", "-m", "-i", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", _FIRST, name,
             sys.executable],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._first.stdout is not None
        if self._first.stdout.readline() != "ready\n":
            _, errors = self._first.communicate()
            raise CannotIsolate(f"namespaces cannot be made here: {errors.strip()}")
        waiting = self._first.pid
        self.pid = int(Path(f"/proc/{waiting}/task/{waiting}/children").read_text())

    def enter(self, *spaces: str) -> tuple[str, ...]:
        """Return the beginning of a command that runs in these namespaces. spaces: options of nsenter."""
        return ("nsenter", "-t", str(self.pid), *spaces)

    def close(self) -> None:
        """End the first process, and with it everything in its namespaces."""
        self._first.kill()
        self._first.communicate()


class Machine(_Space):
    """One machine, with its programs and its link to the switch."""

    def __init__(self, number: int, switch: _Space) -> None:
        super().__init__(f"machine{number}")
        self._switch = switch
        self._port = f"port{number}"
        self.number = number
        self.address = f"{_NET}.{number + 1}"
        self._started: list[Process] = []
        self._pids = Path(f"/proc/{self.pid}/ns/pid").readlink()
        port = self._port
        at_switch = switch.enter("-n")
        _run(*at_switch, "ip", "link", "add", port, "type", "veth", "peer", "name", LINK, "netns", str(self.pid))
        _run(*at_switch, "ip", "link", "set", port, "master", "switch0", "up")
        _run(*self.enter("-n"), "ip", "address", "add", f"{self.address}/24", "dev", LINK)
        _run(*self.enter("-n"), "ip", "link", "set", LINK, "up")

    # --- what runs there --------------------------------------------------------------------------------------

    def start(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], **popen: Any) -> Process:
        """Start a program on the machine. popen: further arguments of Popen."""
        there = (*self.enter("-n", "-u", "-m", "-i", "-p"), "sh", "-c", 'cd "$0" && exec "$@"', str(cwd), *command)
        env = {**env, "GLOO_SOCKET_IFNAME": LINK}
        self._started.append(Process(subprocess.Popen(there, cwd=cwd, env=env, **popen)))
        return self._started[-1]

    def path(self, path: Path | str) -> Path:
        """Return the path, from the host, of a file of the machine."""
        return Path(f"/proc/{self.pid}/root{path}")

    def own(self, directory: Path) -> None:
        """Give the machine a disk of its own at a directory, which exists on the host. The others do not see it."""
        _run(*self.enter("-m"), "mount", "-t", "tmpfs", "-o", "size=2g,mode=755", "tmpfs", str(directory))

    def processes(self) -> dict[int, int]:
        """Return the pids on the host by the pids on the machine, without the first process."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            with contextlib.suppress(OSError):
                if (entry / "ns/pid").readlink() == self._pids:
                    lines = (entry / "status").read_text().splitlines()
                    status = dict(line.partition(":\t")[::2] for line in lines)
                    if status["State"][0] not in "ZX":
                        found[int(status["NSpid"].split()[-1])] = int(entry.name)
        return found

    def signal(self, pid: int, signum: int) -> None:
        """Send a signal to a process, given by its pid on the machine."""
        os.kill(self.processes()[pid], signum)

    def kill_all(self) -> None:
        """Kill everything on the machine."""
        while found := self.processes():
            self._signal_all(found, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop everything on the machine by SIGSTOP; the machine's kernel goes on answering."""
        self._signal_all(self.processes(), signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue everything that `freeze` has stopped."""
        self._signal_all(self.processes(), signal.SIGCONT)
        for process in self._started:
            process.goes_on()

    @staticmethod
    def _signal_all(found: Mapping[int, int], signum: int) -> None:
        for pid in found.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    # --- its link ---------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Pull the cable: nothing gets in or out, and sending still succeeds."""
        _run(*self._switch.enter("-n"), "ip", "link", "set", self._port, "down")

    def slow(self, kbit: int) -> None:
        """Limit the bandwidth of what the machine sends. Needs tc, and tbf in the kernel."""
        rate = ("rate", f"{kbit}kbit", "burst", "16kb", "latency", "200ms")
        _run(*self.enter("-n"), "tc", "qdisc", "replace", "dev", LINK, "root", "tbf", *rate)

    def mend(self) -> None:
        """Undo `cut`, `mute` and `lossy`."""
        _run(*self._switch.enter("-n"), "ip", "link", "set", self._port, "up")
        if shutil.which("nft"):
            _run(*self._switch.enter("-n"), "nft", f"add table netdev {self._port}; delete table netdev {self._port}")

    def mute(self) -> None:
        """Lose everything that the machine sends; the machine still hears the others. Needs nft."""
        self._filter("drop")

    def lossy(self, percent: int) -> None:
        """Lose a share of the packets that the machine sends. Needs nft."""
        self._filter(f"numgen random mod 100 < {percent} drop")

    def _filter(self, rule: str) -> None:
        hook = f"{{ type filter hook ingress device {self._port} priority 0; }}"
        for words in (f"add table netdev {self._port}", f"add chain netdev {self._port} out {hook}"):
            _run(*self._switch.enter("-n"), "nft", words)
        _run(*self._switch.enter("-n"), "nft", f"add rule netdev {self._port} out counter {rule}")

    def filtered(self) -> int:
        """Return the number of packets that have come to the filter of `mute` or `lossy`."""
        listing = _run(*self._switch.enter("-n"), "nft", "list", "chain", "netdev", self._port, "out")
        return int(listing.partition("counter packets ")[2].split()[0])

    def lose(self) -> None:
        """Lose the machine: its processes are killed, and no word of their ends gets out."""
        self.cut()
        self.kill_all()


class Machines:
    """Several machines and the switch between them. Raises CannotIsolate if they cannot be made."""

    apart = True
    """whether each machine has its own network, host name, processes and /dev/shm"""

    def __init__(self, count: int) -> None:
        if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            raise CannotIsolate(f"machines are made with {', '.join(missing)}, which is not installed")
        self._ends = contextlib.ExitStack()
        self.all: list[Machine] = []
        try:
            switch = _Space("switch")
            self._ends.callback(switch.close)
            _run(*switch.enter("-n"), "ip", "link", "add", "name", "switch0", "type", "bridge")
            _run(*switch.enter("-n"), "ip", "link", "set", "dev", "switch0", "up")
            for number in range(count):
                self.all.append(Machine(number, switch))
                self._ends.callback(self.all[-1].close)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, number: int) -> Machine:
        return self.all[number]

    def __len__(self) -> int:
        return len(self.all)

    def close(self) -> None:
        """End all machines."""
        for machine in self.all:
            with contextlib.suppress(OSError):
                machine.thaw()
        self._ends.close()

    def __enter__(self) -> Machines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()
