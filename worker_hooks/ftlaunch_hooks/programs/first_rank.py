"""Lets rank 0 come first where it is on another node: its store should listen before others connect to it.

A client of torch's TCPStore that comes too early tries again after a random time, 0.1 to 0.8 s with torch 2.13. On one
node rank 0 is forked first; on another node its port tells how far it is.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

_PATIENCE = 0.25  # seconds: a script may do other things before it makes its process group
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.032  # seconds between two tries, doubled each time


def await_first_rank(env: Mapping[str, str]) -> None:
    """Wait until something listens where rank 0 will have its store; not where that is on this node, and not for long.

    env: of the rank.
    """
    first = env.get("FTLAUNCH_NODE_RANKS", "0:").partition(":")[0]
    if first.strip("0") == "" or not _numeric(env.get("MASTER_ADDR", "")):  # a name may take seconds to be resolved
        return
    deadline, pause = time.monotonic() + _PATIENCE, _FIRST_PAUSE
    while (left := deadline - time.monotonic()) > 0:
        with suppress(OSError), socket.create_connection((env["MASTER_ADDR"], int(env["MASTER_PORT"])), timeout=left):
            return
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _numeric(address: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(address))
    return False
