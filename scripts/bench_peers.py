"""What a copy of a snapshot to another node costs, next to a plain socket, over loopback.

    python scripts/bench_peers.py [MIB]

A copier sends a shard of so many MiB (1024) to another one, whose memory for it is reserved already; beside it, the
same bytes go by sendfile and recv_into from the same file into nothing. Then copies of a few kB, as under DDP. Median
and range of five rounds.
"""

from __future__ import annotations

import multiprocessing
import shutil
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.copiers import CopierNode

MIB = 1 << 20
ROUNDS = 5
SMALL = 200


def told(name: str, values: list[float], unit: str) -> None:
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"{name:<44} {middle:8.2f} {unit}  ({low:.2f} to {high:.2f})", flush=True)


def receive(connection: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(MIB))
    while size:
        size -= connection.recv_into(buffer)
    connection.sendall(b"!")


def plain(path: Path) -> float:
    """Seconds that a socket alone takes for a file, between two processes."""
    one, other = tcp_pair()
    size = path.stat().st_size
    child = multiprocessing.get_context("fork").Process(target=receive, args=(other, size))
    child.start()
    began = time.monotonic()
    with path.open("rb") as file:
        one.sendfile(file)
    one.recv(1)
    seconds = time.monotonic() - began
    child.join()
    one.close()
    other.close()
    return seconds


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def large(memory: Path, size: int) -> None:
    one, other = CopierNode(0, memory, range(1)), CopierNode(1, memory, range(0))
    copied, alone = [], []
    for node in (one, other):
        node.attempt(world=1)
    one.send_to(other)
    one.snapshot(1, 0, "fsdp", size // 2)
    for step in range(1, ROUNDS + 3):  # the first two reserve memory
        one.pages[0].set_slot(0, step)
        answer = one.ask("copy", step=step)
        assert "error" not in answer, answer
        if step > 2:
            copied.append(answer["bytes"] / answer["seconds"] / 1e9)
            path = one.slot(0, 0) / "model.safetensors"
            alone.append(path.stat().st_size / plain(path) / 1e9)
    told(f"a copy of {size // MIB} MiB", copied, "GB/s")
    told("the same by a plain socket", alone, "GB/s")
    told("copy / plain socket", [a / b for a, b in zip(copied, alone, strict=True)], "    ")
    one.close()
    other.close()


def small(memory: Path) -> None:
    one, other = CopierNode(2, memory, range(2)), CopierNode(3, memory, range(2, 4))
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
    told(f"a copy of {size} bytes of two ranks", took, "ms")
    told("  processor time of its sender", worked, "ms")
    one.close()
    other.close()


def main() -> None:
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 1024) * MIB
    memory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="ftlaunch-bench-"))
    try:
        large(memory, size)
        small(memory)
    finally:
        shutil.rmtree(memory)


if __name__ == "__main__":
    main()
