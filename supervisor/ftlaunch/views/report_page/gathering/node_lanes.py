"""Gathers the stays of a job's nodes over time: which host had which place, or stood by. Pure."""

from __future__ import annotations

from typing import Any

from ftlaunch.history.timeline import Moment

MOST_NODES = 64
MOST_STAYS = 1000
STANDBY = -1
"""stands for the place of a node that stands by"""


class NodeLanes:
    """Lanes of hosts from the journal's `node_joined`, `node_placed` and `node_left`; empty for a job of one node."""

    def __init__(self) -> None:
        self.arrivals_left_out = 0
        """number of arrivals of nodes without a lane"""
        self.stays_left_out = 0
        """number of stays that the lanes lack"""
        self._rows: dict[int, dict[str, Any]] = {}  # by the number that the head gave to the node
        self._open: dict[int, tuple[float, int]] = {}  # begin and place of a node's present stay
        self._stays = 0
        self._newest = 0.0

    def apply(self, moment: Moment) -> None:
        """Process the next event of the journal."""
        self._newest = moment.wall
        if moment.event in ("job_started", "head_replaced"):
            self._end_all(moment.wall)
        elif moment.event == "node_joined":
            self._join(int(moment.fields.get("node", 0)), moment)
        elif moment.event == "node_placed":
            self._move(int(moment.fields.get("node", 0)), moment.wall, int(moment.fields.get("place", STANDBY)))
        elif moment.event == "node_left":
            self._move(int(moment.fields.get("node", 0)), moment.wall, None)
        elif moment.event in ("job_finished", "job_stopped", "job_failed"):
            self._end_all(moment.wall)

    def _join(self, node: int, moment: Moment) -> None:
        self._move(node, moment.wall, None)
        host = str(moment.fields.get("host") or moment.fields.get("address") or "")[:100]
        row = next((row for row in self._rows.values() if row["host"] == host and row["free"]), None)
        if row is None and len({id(row) for row in self._rows.values()}) >= MOST_NODES:
            self.arrivals_left_out += 1
            return
        self._rows[node] = row or {"host": host, "stays": [], "free": True}
        self._rows[node]["free"] = False
        self._open[node] = moment.wall, STANDBY

    def _move(self, node: int, at: float, place: int | None) -> None:
        """End the present stay of a node, and begin a stay at `place`, unless `place` is None: the node is gone."""
        before = self._open.pop(node, None)
        row = self._rows.get(node)
        if row is None:
            return
        if before is not None and self._stays < MOST_STAYS:
            row["stays"].append((before[0], at, before[1]))
            self._stays += 1
        elif before is not None:
            self.stays_left_out += 1
        if place is not None:
            self._open[node] = at, place
        else:
            row["free"] = True

    def _end_all(self, at: float) -> None:
        for node in list(self._open):
            self._move(node, at, None)
        self._rows = {id(row): row for row in self._rows.values()}  # the next head numbers its nodes from the beginning

    def to_json(self, zero: float) -> dict[str, Any]:
        """Return the lanes, ready for JSON: the stays of each host, with begin, end (seconds after `zero`) and place.

        The call ends all stays.
        """
        self._end_all(self._newest)
        rows = {id(row): row for row in self._rows.values()}.values()
        lanes = [
            {
                "host": row["host"],
                "stays": [[round(begin - zero, 3), round(end - zero, 3), place] for begin, end, place in row["stays"]],
            }
            for row in rows
        ]
        return {"rows": lanes}
