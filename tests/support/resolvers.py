"""Host names on a machine made of namespaces: its own /etc/hosts, and a name server that may be silent."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.machines import Machine

# Answers every question for an address with a given address once a file exists. Until then the server is silent, like
# a host behind a firewall that drops packets. Other questions get an answer without records.
_SERVER = """
import pathlib, socket, sys
address, ready, noted = sys.argv[1], pathlib.Path(sys.argv[2]), open(sys.argv[3], "a", buffering=1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind((address, 53))
    print("ready", flush=True)
    while True:
        query, client = server.recvfrom(512)
        print("answered" if ready.exists() else "dropped", file=noted)
        if not ready.exists():
            continue
        end = query.index(b"\\0", 12) + 5
        wanted = query[end - 4 : end - 2] == b"\\0\\1"
        head = query[:2] + b"\\x81\\x80\\0\\1" + (b"\\0\\1" if wanted else b"\\0\\0") + b"\\0\\0\\0\\0"
        answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\1\\0\\4" + socket.inet_aton(address) if wanted else b""
        server.sendto(head + query[12:end] + answer, client)
"""


def hosts(machine: Machine, home: Path, names: Mapping[str, str]) -> None:
    """Give a machine an /etc/hosts of its own. names: address -> name."""
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for address, name in names.items())]
    _mount(machine, home / f"hosts_{machine.number}", "\n".join(lines) + "\n", "/etc/hosts")


def asks(machine: Machine, home: Path, server: str, *, patience: str = "timeout:5") -> None:
    """Have a machine ask a name server for names that its /etc/hosts lacks.

    Args:
        machine: the machine.
        home: a directory for files.
        server: the address of the name server.
        patience: the options of resolv.conf(5) that limit the wait for an answer.
    """
    content = f"nameserver {server}\noptions {patience}\n"
    _mount(machine, home / f"resolv_{machine.number}", content, "/etc/resolv.conf")


def _mount(machine: Machine, file: Path, content: str, place: str) -> None:
    file.write_text(content)
    subprocess.run([*machine.enter("-m"), "mount", "--bind", str(file), place], check=True)


@contextlib.contextmanager
def name_server(machine: Machine, home: Path) -> Iterator[tuple[Path, Path]]:
    """Run a name server on a machine, which gives the machine's own address to all names.

    Yields:
        The file whose existence makes the server answer, and the file in which the server notes each question.
    """
    ready = home / "answers"
    noted = home / "asked"
    command = [*machine.enter("-n"), sys.executable, "-c", _SERVER, machine.address, str(ready), str(noted)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield ready, noted
        finally:
            server.kill()
