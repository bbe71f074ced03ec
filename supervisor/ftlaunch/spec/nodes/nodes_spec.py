"""NodesSpec, the part of a JobSpec that describes the nodes of a job. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ftlaunch.spec.keys import default
from ftlaunch.spec.meeting_stores.store import MeetingStore
from ftlaunch.spec.parsing.hosts import Host

LAST_CALL_SECONDS = 30.0  # torchrun's last_call_timeout
PORTS = {"c10d": 29400, "static": 29500}
"""default ports of the backends without a store"""


@dataclass(frozen=True)
class NodesSpec:
    """How many nodes a job has, which of them this node is, and where they meet. A single node meets no others."""

    least: int = 1
    """fewest nodes"""
    most: int = 1
    """most nodes"""
    rank: int | None = None
    """place of this node; None if places are given in the order of arrival"""
    address: str | None = None
    """host at which the nodes meet; None for a single node, and for a meeting in a store"""
    port: int = PORTS["c10d"]
    """port at which the nodes meet"""
    backend: str = "c10d"
    """c10d, static, or the store of the meeting; c10d and static differ only in which options give address and port"""
    wait: float = default("node_wait")
    """seconds for which the job waits for the nodes that it needs"""
    timeout: float = default("node_timeout")
    """seconds of silence after which a node counts as lost"""
    isolate_after: int = default("isolate_after")
    """failures after which a machine gets no ranks if another can take its place; 0 for off"""
    last_call: float = LAST_CALL_SECONDS
    """seconds for which a job with its fewest nodes waits for more before it begins"""
    topology: str | None = None
    """failure domain of this node; None for the machine itself"""
    peer_interval: int | Literal["auto"] = default("peer_interval")
    """steps between copies of snapshots to another node; 0 for off"""
    peer_bandwidth: float | None = default("peer_bandwidth")
    """bytes a second that a node sends for copies; None for no limit"""
    token: str | None = field(default=None, repr=False)
    """secret by which nodes recognise each other; None if none was given"""
    authenticates: bool = True
    """whether nodes must know a token; False: whoever reaches the head may take part, as with torchrun"""
    store: MeetingStore | None = None
    """the service in which the nodes meet, such as etcd; None for c10d and static"""
    hosts: tuple[Host, ...] = ()
    """hosts on which this command starts agents by ssh; empty if this command is itself the agent of a node"""
    ssh: tuple[str, ...] = default("ssh")
    """program that reaches the hosts, with options"""

    @property
    def several(self) -> bool:
        """Whether the job may have more than one node."""
        return self.most > 1
