"""A proxy whose connections have a limited bandwidth each, as those to a large provider's bucket have.

python slow_link.py PORT BYTES_PER_SECOND      # prints its own port, and serves until it is killed
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ftlaunch_contract.files.rate_limit import Bandwidth

_HERE = "127.0.0.1"
_PIECE = 64 << 10  # bytes that are passed on at once


@contextmanager
def slow_link(port: int, bytes_per_second: float) -> Iterator[int]:
    """Yield the port of a proxy before another port of this machine, in a process that ends with the block."""
    command = [sys.executable, str(Path(__file__)), str(port), str(bytes_per_second)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _pass_on(source: socket.socket, target: socket.socket, bytes_per_second: float) -> None:
    """Pass everything on in one direction, until either side ends."""
    limit = Bandwidth(bytes_per_second, threading.Event().wait)
    with suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
            limit.spent(len(piece))
        target.shutdown(socket.SHUT_WR)


def main() -> None:
    """Serve."""
    port = int(sys.argv[1])
    bytes_per_second = float(sys.argv[2])
    with socket.create_server((_HERE, 0), backlog=256) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client = listener.accept()[0]
            server = socket.create_connection((_HERE, port))
            for ends in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(*ends, bytes_per_second), daemon=True).start()


if __name__ == "__main__":
    main()
