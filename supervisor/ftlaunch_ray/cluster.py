"""The driver's connection to a Ray cluster, and what Ray reports about the cluster's nodes.

The functions run in the process of `ftlaunch_ray`: `connected` on the main thread, `draining` on a helper thread of the
event loop.
"""

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
_CONNECT_SECONDS = 5.0


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Hold a connection to the cluster that RAY_ADDRESS names, or to the cluster that this machine is a node of.

    A connection that exists already is used, and stays open at the end.

    Raises:
        SpecError: the address cannot be used, or no cluster answers there.
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
    """Check that something listens at `address`, because `ray.init` would try for minutes.

    Args:
        address: HOST:PORT; anything else, such as `auto`, is not checked.

    Raises:
        OSError: nothing answered within 5 seconds.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _why_not(address: str, error: Exception) -> str:
    advice = "start one with `ray start --head`, or set RAY_ADDRESS to HOST:PORT of one"
    if address == "auto" and isinstance(error, ConnectionError):
        return f"cannot start on Ray: no Ray cluster runs on this machine; {advice}"
    reason = (isinstance(error, OSError) and error.strerror) or str(error).strip().partition("\n")[0] or "no answer"
    return f"cannot reach a Ray cluster at {one_line(address)}: {reason.rstrip('.')}; {advice}"


def nodes() -> list[RayNode]:
    """Return the living nodes of the cluster with their total resources."""
    return [RayNode(node["NodeManagerAddress"], dict(node["Resources"])) for node in ray.nodes() if node["Alive"]]


def draining() -> frozenset[str]:
    """Return the ids of the nodes that Ray will take away soon, for example preempted spot instances."""
    return frozenset(_state.get_draining_nodes())
