"""What a copy of a snapshot to another machine costs, next to a plain socket.

The copier of one machine sends a shard to that of another, whose memory for it is reserved already; in turn with it,
the same bytes go by sendfile and recv_into from the same file into nothing. Then copies of a few kB, as under DDP.
This file is also what is started on the two machines.
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
SMALL = 200
MEMORY = Path("/dev/shm")  # of the machine


def told_spread(name: str, values: list[float], unit: str) -> None:
    """Print median and range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"{name:<44} {middle:8.2f} {unit}  ({low:.2f} to {high:.2f})", flush=True)


# --- the machine that receives -----------------------------------------------------------------------------------


def receive(address: str, size: int, ports: Path) -> None:
    """Receive what is sent, for ever; `ports` says where."""
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
    """Receive so many bytes into nothing, and say so."""
    buffer = memoryview(bytearray(MIB))
    while size:
        size -= connection.recv_into(buffer[:size])
    connection.sendall(b"!")


# --- the machine that sends --------------------------------------------------------------------------------------


def send(address: str, receiver: str, size: int, ports: dict[str, int]) -> None:
    """Measure."""
    large(address, receiver, size, ports)
    small()


def large(address: str, receiver: str, size: int, ports: dict[str, int]) -> None:
    """Copies of one shard, and the same bytes through a plain socket."""
    node = CopierNode(0, MEMORY, range(1), address=address)
    node.attempt(world=1)
    node.tell("buddy", to={"node": 1, "address": receiver, "port": ports["copier"]})
    node.snapshot(1, 0, "fsdp", size // 2)
    path = node.slot(0, 0) / "model.safetensors"
    copied, processor, alone = [], [], []
    for step in range(1, ROUNDS + 3):  # the first two reserve memory
        node.pages[0].set_slot(0, step)
        answer = node.ask("copy", step=step)
        assert "error" not in answer, answer
        if step > 2:
            copied.append(answer["bytes"] / answer["seconds"] / 1e9)
            processor.append(answer["processor_seconds"] / answer["seconds"])
            alone.append(size // 2 / plain(path, size // 2, receiver, ports["plain"]) / 1e9)
    told_spread(f"a copy of {size // MIB} MiB", copied, "GB/s")
    told_spread("  processor time of its sender", processor, "of one core")
    told_spread("the same by a plain socket", alone, "GB/s")
    told_spread("copy / plain socket", [a / b for a, b in zip(copied, alone, strict=True)], "    ")
    node.close()


def plain(path: Path, size: int, address: str, port: int) -> float:
    """Seconds that a socket alone takes for half of a shard, which is one of its two files."""
    with socket.create_connection((address, port)) as connection, path.open("rb") as file:
        began = time.monotonic()
        connection.sendfile(file, count=size)
        connection.recv(1)
        return time.monotonic() - began


def small() -> None:
    """Copies of what no other node has under DDP."""
    one, other = CopierNode(2, MEMORY, range(2)), CopierNode(3, MEMORY, range(2, 4))
    for node in (one, other):
        node.attempt()
        node.snapshot(1, 0, "ddp")
    one.send_to(other)
    took, worked, size = [], [], 0
    for step in range(1, SMALL):
        for node in (other, one):
            for page in node.pages.values():
                page.set_slot(0, step)
        answer = one.ask("copy", step=step)
        assert "error" not in answer, answer
        took.append(1000 * answer["seconds"])
        worked.append(1000 * answer["processor_seconds"])
        size = answer["bytes"]
    told_spread(f"a copy of {size} bytes of two ranks", took, "ms")
    told_spread("  processor time of its sender", worked, "ms")
    one.close()
    other.close()


# --- both --------------------------------------------------------------------------------------------------------


def start(machine: Machine, role: str, *more: str) -> Process:
    """Start this program on a machine."""
    command = [sys.executable, __file__, "--role", role, "--address", machine.address, *more]
    return machine.start(command, Path.cwd(), os.environ)


def measure(size: int) -> int:
    """Measure and print; returns the exit code of the sender."""
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
