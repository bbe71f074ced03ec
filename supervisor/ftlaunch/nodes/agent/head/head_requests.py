"""Answers the head's requests about nodes: status, nodes, forgive, grow and drain.

A request comes on the head's control socket, or from an agent that passes on a request of its own socket. Requests to
stop the job are `ftlaunch.engine.stop_requests`.
"""

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
    """The request handlers of a head."""

    def __init__(
        self,
        endpoint: str,
        cluster: Cluster,
        machines: IsolatedMachines,
        overview: Callable[[bool], Overview],
        report: Callable[[JobEvent], None],
    ) -> None:
        """Create the handlers.

        Args:
            endpoint: the address and port of this head, for people.
            cluster: the nodes of the job.
            machines: machines that are isolated after failures.
            overview: returns the overview of the job, with or without its ranks.
            report: writes an event to the journal.
        """
        self._endpoint = endpoint
        self._cluster = cluster
        self._machines = machines
        self._overview = overview
        self._report = report

    def verbs(self) -> dict[str, Verb]:
        """Return the handler of each request by the request's name."""
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
        node = str(request.get("node"))
        why = reason_of(request)
        answer = self._regroup(lambda: self._cluster.regrouping.drain(node, why))
        if answer["ok"]:
            self._report(DrainRequested(node, why))
        return answer

    def _regroup(self, ask: Callable[[], str]) -> dict[str, Any]:
        try:
            return {"ok": True, "done": ask()}
        except CannotRegroup as refusal:
            return {"ok": False, "error": str(refusal)}
