"""What a job spec says about nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ftlaunch.spec.keys import default
from ftlaunch.spec.nodes import etcd
from ftlaunch.spec.nodes.etcd import EtcdSpec
from ftlaunch.spec.parsing.hosts import Host

LAST_CALL = 30.0  # torchrun's last_call_timeout
PORTS = {"c10d": 29400, "static": 29500, "etcd": etcd.PORT}
"""default ports by backend"""


@dataclass(frozen=True)
class NodesSpec:
    """How many nodes a job has, which of them this is, and where they meet. One node meets nobody."""

    least: int = 1
    most: int = 1
    rank: int | None = None
    """this node's place; None is as they come"""
    address: str | None = None
    """the host at which the nodes meet; None for one node only, and where they meet in etcd"""
    port: int = PORTS["c10d"]
    backend: str = "c10d"
    """c10d or static, which differ in where address and port were given, or etcd"""
    wait: float = default("node_wait")
    """seconds for which the job waits for the nodes it needs"""
    timeout: float = default("node_timeout")
    """seconds of silence after which a node counts as lost"""
    isolate_after: int = default("isolate_after")
    """failures after which a machine gets no ranks where another can take its place; 0 is off"""
    last_call: float = LAST_CALL
    """seconds for which a job that has its least nodes waits for more before it begins"""
    topology: str | None = None
    """this node's failure domain; None is the machine"""
    peer_interval: int | Literal["auto"] = default("peer_interval")
    """steps between copies of snapshots to another node; 0 is off"""
    peer_bandwidth: float | None = default("peer_bandwidth")
    """bytes a second that a node sends for copies; None is as fast as the network takes them"""
    token: str | None = field(default=None, repr=False)
    """the secret by which nodes know each other; None where none was given"""
    etcd: EtcdSpec | None = None
    """where several nodes meet that were given etcd"""
    hosts: tuple[Host, ...] = ()
    """where this command starts agents by ssh; empty: it is itself the agent of a node"""
    ssh: tuple[str, ...] = default("ssh")

    @property
    def several(self) -> bool:
        """Whether the job may have more than one node."""
        return self.most > 1
