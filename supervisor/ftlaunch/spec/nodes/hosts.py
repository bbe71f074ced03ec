"""Derives settings from a list of hosts: how many nodes there are, where they meet, how many ranks each has. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.spec.errors import Given
from ftlaunch.spec.meeting_stores.table import STORES
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.spec.parsing.hosts import Host


def from_hosts(settings: Mapping[str, Given], hosts: Given, name: str) -> dict[str, Given]:
    """Return the settings that follow from a list of hosts.

    Args:
        settings: all settings.
        hosts: the hosts.
        name: the option that has given the hosts, "hosts" or "hostfile".

    Raises:
        SpecError: another setting contradicts the hosts.
    """
    given: tuple[Host, ...] = hosts.value
    if settings["node_rank"].asked:
        raise settings["node_rank"].error("node_rank", f"`--{name}` gives each host a place of its own; leave it out")
    nnodes = settings["nnodes"]
    if nnodes.asked and nnodes.value[0] > len(given):
        raise nnodes.error("nnodes", f"`--{name}` names fewer hosts, {len(given)}; name more, or ask for fewer nodes")
    derived = {"hosts": hosts, **_rank_settings(settings, hosts, name)}
    if not nnodes.asked:
        derived["nnodes"] = hosts._replace(value=(len(given), len(given)), raw=str(len(given)))
    has_meeting_place = settings["rdzv_endpoint"].value is not None or settings["master_addr"].asked
    if not has_meeting_place and settings["rdzv_backend"].value not in STORES:
        derived["rdzv_endpoint"] = hosts._replace(value=(Endpoint(given[0].address, None),), raw=given[0].address)
    return derived


def _rank_settings(settings: Mapping[str, Given], hosts: Given, name: str) -> dict[str, Given]:
    """Return the settings for the ranks of a node. Raises SpecError if the hosts have different numbers of ranks.

    The CPUs and GPUs of this machine do not count, because this machine need not be one of the hosts.
    """
    given: tuple[Host, ...] = hosts.value
    nproc = settings["nproc_per_node"]
    if nproc.asked:  # the option has precedence over the hosts' own numbers
        derived = {"hosts": hosts._replace(value=tuple(Host(host.name) for host in given))}
        if not isinstance(nproc.value, int):
            derived["nproc_per_node"] = nproc._replace(value=1)
        return derived
    if {host.slots for host in given} == {None}:
        return {}
    first = given[0]
    other = next((host for host in given if host.slots != first.slots), None)
    if other is not None:
        raise hosts.error(
            name,
            f"all nodes have the same number of ranks, and {first.name} has {_slots_text(first)}, {other.name}"
            f" {_slots_text(other)}; make them alike, or give `--nproc-per-node`",
        )
    return {"nproc_per_node": hosts._replace(value=first.slots, raw=str(first.slots))}


def _slots_text(host: Host) -> str:
    return "no number" if host.slots is None else str(host.slots)
