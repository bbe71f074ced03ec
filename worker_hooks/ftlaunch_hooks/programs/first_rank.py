"""Delays ranks until rank 0's store on another node listens.

A client of torch's TCPStore that connects too early tries again after a random time, 0.1 to 0.8 s with torch 2.13. On
one node rank 0 is forked first; on other nodes its port shows whether its store is up. Loaded as a file by
fork_server.py in each forked rank. Standard library only.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

PATIENCE_SECONDS = 0.25
"""longest wait in seconds; a script may do other things before it makes its process group"""
_FIRST_PAUSE_SECONDS = 0.002  # time between two tries, doubled each time up to the longest pause
_LONGEST_PAUSE_SECONDS = 0.032


def await_first_rank(env: Mapping[str, str]) -> None:
    """Wait until something listens on rank 0's port, at most a quarter of a second.

    Return at once if rank 0 is on this node, or if its address is a name, because a name may take seconds to resolve.

    Args:
        env: the rank's environment.
    """
    first_rank_here = env.get("FTLAUNCH_NODE_RANKS", "0:").partition(":")[0]
    if first_rank_here.strip("0") == "" or not _is_numeric(env.get("MASTER_ADDR", "")):
        return
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = _FIRST_PAUSE_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        with suppress(OSError), socket.create_connection((env["MASTER_ADDR"], int(env["MASTER_PORT"])), timeout=left):
            return
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _is_numeric(address: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(address))
    return False
