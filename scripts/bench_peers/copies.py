"""Measures what a copy of a snapshot to another machine costs, next to a plain socket.

The copier of one machine sends a shard to the copier of another machine, which has reserved the memory before. In turn
the same bytes go from the same file through a plain socket, by sendfile and recv_into, and are dropped. Then come
copies of a few kB, as under DDP. This file is also the program that is started on the two machines.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from machines.namespaces import Machine, Machines, Process
from tests.support.copiers import CopierNode

MIB = 1 << 20
ROUNDS = 7
SMALL = 200  # small copies
MEMORY = Path("/dev/shm")  # of each machine


def print_spread(name: str, values: list[float], unit: str) -> None:
    """Print median and range."""
    low = min(values)
    middle = statistics.median(values)
    high = max(values)
    print(f"{name:<44} {middle:8.2f} {unit}  ({low:.2f} to {high:.2f})", flush=True)


# --- the machine that receives -----------------------------------------------------------------------------------


def receive(address: str, size: int, ports: Path) -> None:
    """Receive everything that is sent, for ever; write the ports to the file `ports`."""
    node = CopierNode(1, MEMORY, range(0), address=address)
    node.attempt(world=1)
    listener = socket.create_server((address, 0))
    new = ports.with_suffix(".new")
    new.write_text(json.dumps({"copier": node.port, "plain": listener.getsockname()[1]}))
    new.rename(ports)
    while True:
        with listener.accept()[0] as connection:
            receive_plain(connection, size)


def receive_plain(connection: socket.socket, size: int) -> None:
    """Receive `size` bytes, drop them, and confirm."""
    buffer = memoryview(bytearray(MIB))
    while size:
        size -= connection.recv_into(buffer[:size])
    connection.sendall(b"!")


# --- the machine that sends --------------------------------------------------------------------------------------


def send(address: str, receiver: str, size: int, ports: dict[str, int]) -> None:
    """Measure large and small copies."""
    large(address, receiver, size, ports)
    small()


def large(address: str, receiver: str, size: int, ports: dict[str, int]) -> None:
    """Measure copies of one shard, and the same bytes through a plain socket."""
    node = CopierNode(0, MEMORY, range(1), address=address)
    node.attempt(world=1)
    node.send("buddy", to={"node": 1, "address": receiver, "port": ports["copier"]})
    node.snapshot(1, 0, "fsdp", size // 2)
    path = node.slot(0, 0) / "model.safetensors"
    copied = []
    processor = []
    alone = []
    for step in range(1, ROUNDS + 3):  # the first two reserve memory
        node.pages[0].set_slot(0, step)
        answer = node.ask("copy", step=step)
        assert "error" not in answer, answer
        if step > 2:
            copied.append(answer["bytes"] / answer["seconds"] / 1e9)
            processor.append(answer["processor_seconds"] / answer["seconds"])
            alone.append(size // 2 / plain(path, size // 2, receiver, ports["plain"]) / 1e9)
    print_spread(f"a copy of {size // MIB} MiB", copied, "GB/s")
    print_spread("  processor time of its sender", processor, "of one core")
    print_spread("the same by a plain socket", alone, "GB/s")
    print_spread("copy / plain socket", [a / b for a, b in zip(copied, alone, strict=True)], "    ")
    node.close()


def plain(path: Path, size: int, address: str, port: int) -> float:
    """Return the seconds that a plain socket takes for one of a shard's two files, which is half of the shard."""
    with socket.create_connection((address, port)) as connection, path.open("rb") as file:
        began = time.monotonic()
        connection.sendfile(file, count=size)
        connection.recv(1)
        return time.monotonic() - began


def small() -> None:
    """Measure copies of what no other node has under DDP."""
    sender = CopierNode(2, MEMORY, range(2))
    other = CopierNode(3, MEMORY, range(2, 4))
    for node in (sender, other):
        node.attempt()
        node.snapshot(1, 0, "ddp")
    sender.send_to(other)
    took = []
    worked = []
    size = 0
    for step in range(1, SMALL):
        for node in (other, sender):
            for page in node.pages.values():
                page.set_slot(0, step)
        answer = sender.ask("copy", step=step)
        assert "error" not in answer, answer
        took.append(1000 * answer["seconds"])
        worked.append(1000 * answer["processor_seconds"])
        size = answer["bytes"]
    print_spread(f"a copy of {size} bytes of two ranks", took, "ms")
    print_spread("  processor time of its sender", worked, "ms")
    sender.close()
    other.close()


# --- both --------------------------------------------------------------------------------------------------------


def start(machine: Machine, role: str, *more: str) -> Process:
    """Start this program on a machine."""
    command = [sys.executable, __file__, "--role", role, "--address", machine.address, *more]
    return machine.start(command, Path.cwd(), os.environ)


def measure(size: int) -> int:
    """Measure and print; return the exit code of the sender."""
    with Machines(2) as machines, TemporaryDirectory() as directory:
        ports = Path(directory) / "ports"
        more = ("--ports", str(ports), str(size // MIB))
        receiver = start(machines[1], "receive", *more)
        while not ports.exists():
            if receiver.poll() is not None:
                return 1
            time.sleep(0.01)
        return start(machines[0], "send", "--receiver", machines[1].address, *more).wait()


def main() -> None:
    """Be one of the two machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mib", type=int)
    for name in ("--role", "--address", "--receiver", "--ports"):
        parser.add_argument(name)
    args = parser.parse_args()
    if args.role == "receive":
        receive(args.address, args.mib * MIB // 2, Path(args.ports))
    else:
        send(args.address, args.receiver, args.mib * MIB, json.loads(Path(args.ports).read_text()))


if __name__ == "__main__":
    main()
