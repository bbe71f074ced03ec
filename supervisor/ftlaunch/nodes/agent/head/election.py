"""Which process becomes the head: it listens first, then it claims the next term."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from ftlaunch.nodes.agent.head.meeting_address import MeetingAddress, of_endpoint, of_sign, route_to
from ftlaunch.nodes.agent.head.starter import START, TAKE_OVER
from ftlaunch.nodes.channel.arbiter import Arbiter
from ftlaunch.nodes.channel.claims import Sign, this_machine
from ftlaunch.nodes.channel.listener import Listener
from ftlaunch.nodes.cluster.leadership import STALE_PART
from ftlaunch.nodes.cluster.membership.fences import PortProbe
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.system.descriptors import is_readable
from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.protocol import process_start_time

_LOOK = 0.02  # seconds between looks at the sign of a head that does not answer
_KILLED = 5.0  # seconds in which a killed process ends


class Order(NamedTuple):
    """What the process was started for."""

    what: bytes
    """see `starter`"""
    gone: int
    """TAKE_OVER: the term of the head that is gone; another node may have taken its place by now"""


class Elected(NamedTuple):
    """The head, from now on."""

    listener: Listener
    sign: Sign
    before: Sign | None
    """of the head whose place it takes; None where there was none, or where the job has ended under it"""


def stand(nodes: NodesSpec, claims: Arbiter, listen: Callable[[str, int], Listener], order: Order) -> Elected | None:
    """Become the head, or not. Raises OSError where the claim cannot be written.

    The term is that after all that were claimed before the newest sign is looked at: a claim that follows fails.
    """
    try:
        term, last = claims.next_term(), claims.newest()
    except OSError:
        if order.what == START:
            raise
        return None
    before = None if last is None or last.ended else last
    if before is None and order.what != START:  # the job is over; nodes that have not heard so need no head
        return None
    if before is not None and order.what == TAKE_OVER:
        place = _taken_over(nodes, before) if before.term == order.gone else None
    else:
        place = _own_place(nodes, claims, before)
    if place is None:
        return None
    try:
        listener = listen(place.listens, place.port)
    except OSError:  # another head listens
        return None
    pid = os.getpid()
    sign = Sign(term, place.told, listener.port, this_machine(), pid, process_start_time(pid), 0)
    try:
        won = claims.claim(sign)
    except OSError:
        listener.close()
        raise
    if not won:
        listener.close()
        return None
    return Elected(listener, sign, before)


def _own_place(nodes: NodesSpec, claims: Arbiter, before: Sign | None) -> MeetingAddress | None:
    """The endpoint, or where the last head was, if that is this machine's and no head lives."""
    endpoint = of_endpoint(nodes)
    if before is None:
        return endpoint
    if before.machine == this_machine():
        if _lives(before):  # at another endpoint: a node that was given this run dir must go there
            return None
        at_endpoint = endpoint is not None and endpoint.port != 0
        return endpoint if at_endpoint else of_sign(nodes, before.address, before.port)
    if endpoint is None or not _is_gone(claims, before, nodes.timeout * STALE_PART):
        return None
    return endpoint


def _lives(before: Sign) -> bool:
    """Whether the process of a head of this machine is there."""
    return process_start_time(before.pid) == before.started


def _is_gone(claims: Arbiter, before: Sign, stale: float) -> bool:
    """Whether a head's machine says that nobody listens there, or the head shows no sign of life for a while."""
    deadline = time.monotonic() + stale
    probe = PortProbe(before.address, before.port)
    try:
        while time.monotonic() < deadline:
            if probe.is_dead():
                return True
            if claims.read() != before:
                return False
            time.sleep(_LOOK)
    finally:
        probe.close()
    return True


def _taken_over(nodes: NodesSpec, before: Sign) -> MeetingAddress | None:
    """Where to listen instead of a head that is gone for this machine and for the storage."""
    if before.machine != this_machine():
        told, port = route_to(before.address), 0
    else:
        told, port = before.address, before.port
        if _lives(before):
            _kill(before.pid)
    return None if told is None else of_sign(nodes, told, port)


def _kill(pid: int) -> None:
    """End a head that does not answer, as one that is stopped, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        end = open_end(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            is_readable(end, _KILLED)
        finally:
            os.close(end)
