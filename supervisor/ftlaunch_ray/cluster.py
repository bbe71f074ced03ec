"""The connection to a Ray cluster, and what it tells of its nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator

import ray
from ray._private.state import state as _state

from ftlaunch.spec.errors import SpecError, one_line
from ftlaunch_ray.placement import RayNode

_CLIENT = "ray://"
_CONNECT = 5.0  # seconds that a connection may take


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """A connection to the cluster that RAY_ADDRESS names, or that this machine is a node of. Raises SpecError.

    One that is there already is used, and stays.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "auto")
    if address.startswith(_CLIENT):
        raise SpecError(
            f"cannot use RAY_ADDRESS={one_line(address)}: a Ray Client's connection cannot carry this;"
            " use `ray job submit -- python -m ftlaunch_ray ...`, or run the command on a node of the cluster"
        )
    try:
        _reach(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError) as error:  # no cluster; another version of Ray or Python; no address
        raise SpecError(_why_not(address, error)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Whether something listens there: Ray itself tries for minutes. Raises OSError."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT).close()


def _why_not(address: str, error: Exception) -> str:
    advice = "start one with `ray start --head`, or set RAY_ADDRESS to HOST:PORT of one"
    if address == "auto" and isinstance(error, ConnectionError):
        return f"cannot start on Ray: no Ray cluster runs on this machine; {advice}"
    reason = (isinstance(error, OSError) and error.strerror) or str(error).strip().partition("\n")[0] or "no answer"
    return f"cannot reach a Ray cluster at {one_line(address)}: {reason.rstrip('.')}; {advice}"


def nodes() -> list[RayNode]:
    """The nodes of the cluster that live."""
    return [RayNode(one["NodeManagerAddress"], dict(one["Resources"])) for one in ray.nodes() if one["Alive"]]


def draining() -> frozenset[str]:
    """Ids of the nodes that will be taken away."""
    return frozenset(_state.get_draining_nodes())
