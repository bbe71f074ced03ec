"""Where a head listens, and the address by which other machines find it.

Machines may know a host by several addresses. Debian's /etc/hosts, for one, gives the machine's own name to 127.0.1.1,
which means another machine on every other machine.
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
    """Of one head."""

    listens: str
    """the address to bind"""
    told: str
    """by which others find it"""
    port: int


def is_own(address: str) -> bool:
    """Whether a numeric address is this machine's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def of_endpoint(nodes: NodesSpec) -> MeetingAddress | None:
    """Of a head at the endpoint; None where that is another machine's. May wait for the resolver.

    Where nodes meet in etcd, any of them may be the head, at any free port.
    """
    if nodes.etcd is not None:
        told = chosen_for_etcd(_ways_to(nodes.etcd.members))
        return MeetingAddress(told, told, 0)
    host = nodes.address or ""
    try:
        own = [address for address in addresses_of(host, nodes.port) if is_own(address)]
    except OSError:
        return None
    return chosen(host, own, nodes.port) if own else None


def of_sign(nodes: NodesSpec, told: str, port: int) -> MeetingAddress:
    """Of a head that is elsewhere than at the endpoint."""
    return MeetingAddress(told if nodes.etcd is not None else to_bind(nodes.address or "", told), told, port)


def _ways_to(members: Sequence[tuple[str, int]]) -> list[str]:
    """This machine's addresses on the ways to the members of etcd."""
    ways: list[str] = []
    for host, port in members:
        with contextlib.suppress(OSError, UnicodeError):  # the latter: no name can be so
            ways += filter(None, map(route_to, addresses_of(host, port)))
    return ways


def chosen_for_etcd(ways: Sequence[str], outside: Callable[[], Sequence[str]] | None = None) -> str:
    """The address by which others find a head: on a way to etcd. outside: see `of_machine`.

    Where etcd is reached over the loopback, it may be a member on each machine: then the loopback is only for a machine
    that has no other address.
    """
    reachable = [address for address in ways if not ip_address(address).is_loopback]
    return [*(reachable or (outside or of_machine)()), *ways, "127.0.0.1"][0]


def of_machine() -> list[str]:
    """This machine's addresses for others: on its way out, then those of its interfaces."""
    ways = [way for way in map(route_to, _ELSEWHERE) if way is not None]
    found = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family in _IP]
    return [one for one in (*ways, *found) if "%" not in one and not ip_address(one).is_loopback]


def chosen(
    host: str, own: Sequence[str], port: int, outside: Callable[[], Sequence[str]] = of_machine
) -> MeetingAddress:
    """Where to listen, for an endpoint whose host has the addresses `own` here. outside: see `of_machine`."""
    reachable = [address for address in own if not ip_address(address).is_loopback]
    if not reachable and not is_local(host):
        reachable = list(outside())
    told = [*reachable, *own][0]
    return MeetingAddress(to_bind(host, told), told, port)


def to_bind(host: str, told: str) -> str:
    """The address to bind: all of this machine's where others may resolve the endpoint's name to another of them."""
    if is_local(host):
        return told
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - peers must know the token


def is_local(host: str) -> bool:
    """Whether an endpoint's host means the same address to everybody: numeric, or a name of the loopback."""
    return is_numeric(host) or host.split(".", maxsplit=1)[0] in _LOCAL or host.endswith(".localhost")


def route_to(address: str) -> str | None:
    """This machine's address on the way to another one; None where there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # nothing is sent
        return str(probe.getsockname()[0])
    return None
