"""Decides whether a new process becomes the head: the process listens first, then claims the next term.

Runs in the process that the starter has forked for a head, before its event loop runs. Calls may wait for storage and
for the resolver.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from ftlaunch.nodes.agent.head.starter import START, TAKE_OVER
from ftlaunch.nodes.agent.meeting_address import MeetingAddress, choose_at_endpoint, choose_for_sign, find_route_to
from ftlaunch.nodes.channel.arbiter import Arbiter
from ftlaunch.nodes.channel.claims import STALE_PART, Sign, is_alive_here, this_machine
from ftlaunch.nodes.channel.listener import Listener
from ftlaunch.nodes.channel.votes.claims import VotedClaims
from ftlaunch.nodes.cluster.membership.fences import PortProbe
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.system.descriptors import is_readable
from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.protocol import process_start_time

_READ_INTERVAL_SECONDS = 0.02  # between two reads of the sign of a head that does not answer
_KILL_SECONDS = 5.0  # that a killed process is given to end


class Order(NamedTuple):
    """What a head process was started for."""

    what: bytes
    """one of START, SUCCEED and TAKE_OVER of `starter`"""
    gone: int
    """for TAKE_OVER: the term of the head that is gone; another node may have replaced that head by now"""


class Elected(NamedTuple):
    """The result of a won election."""

    listener: Listener
    """accepts the agents of the job"""
    sign: Sign
    """the sign of life with which this process has claimed its term"""
    before: Sign | None
    """the sign of the replaced head; None if there was no head, or if the job had ended under the last one"""


def stand(nodes: NodesSpec, claims: Arbiter, listen: Callable[[str, int], Listener], order: Order) -> Elected | None:
    """Stand for election as the head.

    Where nodes elect the head, a process that has met none asks first whether one leads elsewhere. The next term is
    read before the newest sign. Therefore a claim by another process after the sign was read makes this claim fail.

    Args:
        nodes: how the nodes of the job meet.
        claims: where terms are claimed.
        listen: opens a listener at an address and a port. Raises OSError if another process listens there.
        order: what this process was started for.

    Returns:
        The listener and the sign of the new head, or None if this process must not become the head.

    Raises:
        OSError: the claim cannot be written.
    """
    try:
        if order.what == START and not _may_begin(nodes, claims):
            return None
        term = claims.next_term()
        last = claims.newest()
    except OSError:
        if order.what == START:
            raise
        return None
    before = None if last is None or last.ended else last
    if before is None and order.what != START:  # the job is over: nodes that have not heard of the end need no head
        return None
    if before is not None and order.what == TAKE_OVER:
        place = _prepare_takeover(nodes, before) if before.term == order.gone else None
    else:
        place = _choose_own_place(nodes, claims, before)
    if place is None:
        return None
    try:
        listener = listen(place.bind, place.port)
    except OSError:  # another head listens
        return None
    pid = os.getpid()
    sign = Sign(
        term=term,
        address=place.advertised,
        port=listener.port,
        machine=this_machine(),
        pid=pid,
        started=process_start_time(pid),
        count=0,
    )
    try:
        won = claims.claim(sign)
    except OSError:
        listener.close()
        raise
    if not won:
        listener.close()
        return None
    return Elected(listener, sign, before)


def _may_begin(nodes: NodesSpec, claims: Arbiter) -> bool:
    """Return whether this process may become a head although it has met none. Raises OSError."""
    if not isinstance(claims, VotedClaims):
        return True
    return claims.may_begin(at_endpoint=choose_at_endpoint(nodes) is not None)


def _choose_own_place(nodes: NodesSpec, claims: Arbiter, before: Sign | None) -> MeetingAddress | None:
    """Return where a head on this machine must listen, or None if the place is another machine's or a head lives.

    The place is the endpoint, or else where the last head listened.
    """
    endpoint = choose_at_endpoint(nodes)
    if before is None:
        return endpoint
    if before.machine == this_machine():
        if is_alive_here(before):  # possibly at another endpoint, where the nodes of this run dir must go
            return None
        at_endpoint = endpoint is not None and endpoint.port != 0
        return endpoint if at_endpoint else choose_for_sign(nodes, before.address, before.port)
    if endpoint is None or not _is_gone(claims, before, nodes.timeout * STALE_PART):
        return None
    return endpoint


def _is_gone(claims: Arbiter, before: Sign, stale_seconds: float) -> bool:
    """Return whether a head of another machine is gone.

    A head is gone if its machine refuses connections to its port, or if its sign does not change for `stale_seconds`.
    """
    deadline = time.monotonic() + stale_seconds
    probe = PortProbe(before.address, before.port)
    try:
        while time.monotonic() < deadline:
            if probe.is_dead():
                return True
            if claims.read() != before:
                return False
            time.sleep(_READ_INTERVAL_SECONDS)
    finally:
        probe.close()
    return True


def _prepare_takeover(nodes: NodesSpec, before: Sign) -> MeetingAddress | None:
    """Kill a silent head if its process is on this machine, and return where to listen in its place.

    Neither this node nor storage has heard from that head. None if the head was on another machine, to which this
    machine has no route.
    """
    if before.machine != this_machine():
        address = find_route_to(before.address)
        port = 0
    else:
        address = before.address
        port = before.port
        if is_alive_here(before):
            _kill(before.pid)
    return None if address is None else choose_for_sign(nodes, address, port)


def _kill(pid: int) -> None:
    """Kill a head that does not answer, for example because it was stopped, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        end = open_end(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            is_readable(end, _KILL_SECONDS)
        finally:
            os.close(end)
