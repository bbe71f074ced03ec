"""Chooses where a head listens, and the address by which other machines find the head.

Machines may know a host by several addresses. Debian's /etc/hosts, for one, gives the machine's own name to 127.0.1.1,
which means another machine on every other machine.

`choose_at_endpoint` may wait for the resolver. `choose` and `choose_for_store` decide from given addresses.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

import psutil

from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.system.name_lookup import addresses_of, is_numeric

_ELSEWHERE = ("192.0.2.1", "2001:db8::1")  # addresses of no machine, reserved for documentation
_IP = (socket.AF_INET, socket.AF_INET6)
_LOCAL = ("localhost", "ip6-localhost", "ip6-loopback")


class MeetingAddress(NamedTuple):
    """Where a head listens."""

    bind: str
    """the address to bind"""
    advertised: str
    """the address by which other machines find the head"""
    port: int
    """the port to bind; 0 for any free one"""


def is_own(address: str) -> bool:
    """Return whether a numeric address belongs to this machine.

    Raises:
        OSError: no socket can be created.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def choose_at_endpoint(nodes: NodesSpec) -> MeetingAddress | None:
    """Return where a head at the job's endpoint listens, or None if the endpoint is another machine's.

    If the nodes meet in a store, any of them may be the head, at any free port. May wait for the resolver.
    """
    if nodes.store is not None:
        advertised = choose_for_store(_find_routes_to(nodes.store.members))
        return MeetingAddress(advertised, advertised, 0)
    host = nodes.address or ""
    try:
        own = [address for address in addresses_of(host, nodes.port) if is_own(address)]
    except OSError:
        return None
    return choose(host, own, nodes.port) if own else None


def choose_for_sign(nodes: NodesSpec, advertised: str, port: int) -> MeetingAddress:
    """Return where a head listens that others find at `advertised` instead of at the job's endpoint."""
    bind = advertised if nodes.store is not None else choose_bind(nodes.address or "", advertised)
    return MeetingAddress(bind, advertised, port)


def _find_routes_to(members: Sequence[tuple[str, int]]) -> list[str]:
    """Return this machine's addresses on the routes to the members of a meeting store."""
    ways: list[str] = []
    for host, port in members:
        with contextlib.suppress(OSError, UnicodeError):  # UnicodeError: the text is no possible host name
            ways += filter(None, map(find_route_to, addresses_of(host, port)))
    return ways


def choose_for_store(ways: Sequence[str], outside: Callable[[], Sequence[str]] | None = None) -> str:
    """Return the address by which other machines find a head, preferably one on a route to the meeting store.

    A route over the loopback is the last choice, because each machine may run a member of the store.

    Args:
        ways: this machine's addresses on its routes to the members of the store.
        outside: returns this machine's addresses for others; by default `list_machine_addresses`.
    """
    reachable = [address for address in ways if not ip_address(address).is_loopback]
    return [*(reachable or (outside or list_machine_addresses)()), *ways, "127.0.0.1"][0]


def list_machine_addresses() -> list[str]:
    """Return this machine's addresses for others: first those on its route out, then those of its interfaces."""
    ways = [way for way in map(find_route_to, _ELSEWHERE) if way is not None]
    found = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family in _IP]
    return [address for address in (*ways, *found) if "%" not in address and not ip_address(address).is_loopback]


def choose(
    host: str, own: Sequence[str], port: int, outside: Callable[[], Sequence[str]] = list_machine_addresses
) -> MeetingAddress:
    """Return where to listen for an endpoint on this machine.

    Args:
        host: the endpoint's host as the user has written it.
        own: this machine's addresses among those of the host.
        port: the endpoint's port.
        outside: returns this machine's addresses for others.
    """
    reachable = [address for address in own if not ip_address(address).is_loopback]
    if not reachable and not is_local(host):
        reachable = list(outside())
    advertised = [*reachable, *own][0]
    return MeetingAddress(choose_bind(host, advertised), advertised, port)


def choose_bind(host: str, advertised: str) -> str:
    """Return `advertised`, or all addresses if other machines may resolve `host` to another address."""
    if is_local(host):
        return advertised
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - peers must know the token


def is_local(host: str) -> bool:
    """Return whether a host needs no resolver: it is numeric, or a name of the loopback."""
    return is_numeric(host) or host.split(".", maxsplit=1)[0] in _LOCAL or host.endswith(".localhost")


def find_route_to(address: str) -> str | None:
    """Return this machine's address on the route to another one, or None if there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # nothing is sent
        return str(probe.getsockname()[0])
    return None
