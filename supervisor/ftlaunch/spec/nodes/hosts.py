"""What a list of hosts says about nodes: how many, where they meet, how many ranks each has. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.spec.errors import Given
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.spec.parsing.hosts import Host


def from_hosts(asked: Mapping[str, Given], hosts: Given, name: str) -> dict[str, Given]:
    """Settings that follow from `hosts`, which the option `name` has given. Raises SpecError."""
    given: tuple[Host, ...] = hosts.value
    if asked["node_rank"].asked:
        raise asked["node_rank"].error("node_rank", f"`--{name}` gives each host a place of its own; leave it out")
    nnodes = asked["nnodes"]
    if nnodes.asked and nnodes.value[0] > len(given):
        raise nnodes.error("nnodes", f"`--{name}` names fewer hosts, {len(given)}; name more, or ask for fewer nodes")
    said = {"hosts": hosts, **_ranks(asked, hosts, name)}
    if not nnodes.asked:
        said["nnodes"] = hosts._replace(value=(len(given), len(given)), raw=str(len(given)))
    meeting = asked["rdzv_endpoint"].value is not None or asked["master_addr"].asked
    if not meeting and asked["rdzv_backend"].value != "etcd":
        said["rdzv_endpoint"] = hosts._replace(value=(Endpoint(given[0].address, None),), raw=given[0].address)
    return said


def _ranks(asked: Mapping[str, Given], hosts: Given, name: str) -> dict[str, Given]:
    """The ranks of a node. This machine need not be one of the hosts: what it has is not asked."""
    given: tuple[Host, ...] = hosts.value
    nproc = asked["nproc_per_node"]
    if nproc.asked:  # it wins over the hosts' own numbers
        plain = hosts._replace(value=tuple(Host(host.name) for host in given))
        return {"hosts": plain, **({} if isinstance(nproc.value, int) else {"nproc_per_node": nproc._replace(value=1)})}
    if {host.slots for host in given} == {None}:
        return {}
    first = given[0]
    other = next((host for host in given if host.slots != first.slots), None)
    if other is not None:
        raise hosts.error(
            name,
            f"all nodes have the same number of ranks, and {first.name} has {_said(first)}, {other.name}"
            f" {_said(other)}; make them alike, or give `--nproc-per-node`",
        )
    return {"nproc_per_node": hosts._replace(value=first.slots, raw=str(first.slots))}


def _said(host: Host) -> str:
    return "no number" if host.slots is None else str(host.slots)
