"""Events about copies of snapshots on other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.formatting import size, stretches
from ftlaunch.memory.restore_map import RestoreMap
from ftlaunch.reporting.events.base import JobEvent


@dataclass(frozen=True)
class RestorePlanned(JobEvent):
    """It is decided where each rank of the next attempt takes its state from."""

    name = "restore_planned"
    map: RestoreMap

    def fields(self) -> dict[str, Any]:
        """Return the step, the ranks whose own node does not have the step in memory, and what supplies each rank."""
        restore_map = self.map
        return {
            "step": restore_map.step,
            "source": restore_map.source,
            "lost": stretches(restore_map.lost),
            "sources": [row.fields() for row in restore_map.rows],
            "replicas": list(restore_map.replicas),
        }


@dataclass(frozen=True)
class FetchPlanned(JobEvent):
    """Nodes whose ranks had lost their memory know which node supplies what, and have read nothing yet."""

    name = "fetch_planned"
    step: int
    nodes: Sequence[dict[str, Any]]
    """a row for each node that fetches: place, sources"""

    def fields(self) -> dict[str, Any]:
        """Return the step, and for each node what is to come from where."""
        return {"step": self.step, "nodes": list(self.nodes)}


@dataclass(frozen=True)
class FetchedFromPeers(JobEvent):
    """Nodes whose ranks had lost their memory have fetched it from others, or could not."""

    name = "fetched"
    step: int
    why: str
    """why the snapshots could not be fetched; "": they were fetched"""
    nodes: Sequence[dict[str, Any]]
    """a row for each node that has fetched: place, seconds, bytes, sources"""

    def fields(self) -> dict[str, Any]:
        """Return the step, the error, and for each node what came from where."""
        return {"step": self.step, "error": self.why, "nodes": list(self.nodes)}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        if self.why:
            return f"cannot go on from step {self.step} in the memory of other nodes: {self.why}; storage is asked next"
        each = [
            f"node {row['place']} from {_joined(sorted({source['node'] for source in row['sources']}))}"
            f" ({size(row['bytes'])} in {row['seconds']:.2f} s)"
            for row in self.nodes
        ]
        return f"step {self.step} was fetched from the memory of other nodes: {', '.join(each)}"


def _joined(nodes: Sequence[int]) -> str:
    return " and ".join([", ".join(map(str, nodes[:-1])), str(nodes[-1])]) if len(nodes) > 1 else f"{nodes[0]}"
