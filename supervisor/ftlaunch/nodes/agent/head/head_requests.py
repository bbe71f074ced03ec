"""What the head is asked on its control socket, or by an agent for somebody on its machine, besides stopping."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.engine.stop_requests import Verb, reason_of, with_ranks
from ftlaunch.nodes.cluster.cluster import Cluster
from ftlaunch.nodes.cluster.membership.isolated_machines import IsolatedMachines
from ftlaunch.nodes.cluster.regrouping import CannotRegroup
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.job import DrainRequested
from ftlaunch.reporting.overview import Overview

Request = Mapping[str, Any]


class HeadRequests:
    """Of one head."""

    def __init__(
        self, endpoint: str, cluster: Cluster, machines: IsolatedMachines, overview: Callable[[bool], Overview],
        tell: Callable[[JobEvent], None],
    ) -> None:  # fmt: skip
        """endpoint: at which this head listens, for people."""
        self._endpoint, self._cluster, self._machines, self._overview = endpoint, cluster, machines, overview
        self._tell = tell

    def verbs(self) -> dict[str, Verb]:
        """By name."""
        return {
            "status": self._on_status,
            "nodes": lambda request: self._cluster.overview(),
            "forgive": self._on_forgive,
            "grow": lambda request: self._regroup(self._cluster.regrouping.grow),
            "drain": self._on_drain,
        }

    def _on_status(self, request: Request) -> dict[str, Any]:
        head = {"host": socket.gethostname(), "endpoint": self._endpoint}
        return {"ok": True, **self._overview(with_ranks(request)).as_dict(), "head": head}

    def _on_forgive(self, request: Request) -> dict[str, Any]:
        return self._machines.forgive(str(request.get("node")), self._cluster.roster.members.values())

    def _on_drain(self, request: Request) -> dict[str, Any]:
        node, why = str(request.get("node")), reason_of(request)
        answer = self._regroup(lambda: self._cluster.regrouping.drain(node, why))
        if answer["ok"]:
            self._tell(DrainRequested(node, why))
        return answer

    def _regroup(self, ask: Callable[[], str]) -> dict[str, Any]:
        try:
            return {"ok": True, "done": ask()}
        except CannotRegroup as refusal:
            return {"ok": False, "error": str(refusal)}
