"""Finds a TCP port that is free, and that the kernel gives to nobody else. Linux only.

A port is found before the process that listens on it is started, and a rank listens only seconds later, once it has
imported its libraries. In between, the kernel may give any port of its own range, which it names in
/proc/sys/net/ipv4/ip_local_port_range, to an outgoing connection or to a socket that is bound to port 0. So a port
outside that range is taken.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

_KERNELS_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 64
_LISTENED_ON = range(10_000, 30_000)
"""ports for listening. Below are those of well-known services; from 30000 to 32767 those that Kubernetes forwards"""


def free_port(address: str) -> int:
    """Return a TCP port of `address` that is free at this moment.

    Another process takes the port only if that process asks for the very port. Where none of the ports that were tried
    is free and outside the kernel's range, the port is one of that range.

    Args:
        address: a numeric address of this machine; empty for every address.

    Raises:
        OSError: `address` is not one of this machine, or has no free port.
    """
    kernels = _read_kernels_range()
    for port in random.sample(_LISTENED_ON, _TRIES):
        if port in kernels:
            continue
        try:
            return _bind(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bind(address, 0)


def _bind(address: str, port: int) -> int:
    """Return the port to which a socket of `address` was bound. Raises OSError."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, port))
        return int(probe.getsockname()[1])


def _read_kernels_range() -> range:
    """Return the ports that the kernel gives by itself; all ports if the range cannot be read."""
    try:
        first, last = _KERNELS_RANGE.read_text(encoding="ascii").split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return range(1, 65_536)
