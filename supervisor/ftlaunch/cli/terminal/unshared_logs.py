"""Reads the logs of a job whose nodes share no run dir, for `ftctl logs`: from the nodes, through the head.

Each request is for one piece of one log, and is sent once the piece before was printed. A reader that is slow thus
makes nobody wait, and nobody keeps more than a piece for it. What the nodes answer is in nodes/cluster/log_pieces.py.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ftlaunch.cli.asking import Cannot, NotRunning, ask_job
from ftlaunch.common.formatting import stretches
from ftlaunch.history.log_notes import LengthNote
from ftlaunch.history.rank_logs import LocalFolder, Log, LogFolder, Piece
from ftlaunch.history.runs import Run

_REFRESH_SECONDS = 0.5  # between two questions which nodes there are
_BUSY_SECONDS = 0.1  # before a request is repeated that nobody had time for
_PATIENCE_SECONDS = 30.0  # for a request that nobody has time for
_HEAD = 0  # key of the head's own log folder
_ONLY_ENDS = "as log_max_size asks, or because the head keeps only the ends of other nodes' logs"


def _name(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {stretches(ranks)}"


@dataclass
class _LogNode:
    """A node of the job that shares no run dir with the head, or the head itself."""

    key: int
    """the number that the head has given to the node; _HEAD for the head's log folder"""
    name: str
    ranks: Collection[int]
    """the ranks of its place now"""
    ahead_seconds: float = 0.0
    """how far its clock is ahead of the head's"""


class UnsharedLogs:
    """The logs of a running job on all of its nodes. Implements `Logs`."""

    def __init__(self, run: Run, name: str | None, ranks: Collection[int]) -> None:
        """Ask nothing yet.

        Args:
            run: the run.
            name: the run as the user named it.
            ranks: the ranks that are wanted; empty for all.
        """
        self._run = run
        self._name = name
        self._ranks = frozenset(ranks)
        self._nodes: dict[int, _LogNode] = {}
        self._is_here_apart = False  # this machine shares no run dir with the head
        self._ranks_each = 1
        self._asked_at = -_REFRESH_SECONDS
        self._folders: dict[tuple[int, int], LogFolder] = {}
        self._said: set[str] = set()
        self.has_failed = False
        """whether something could not be read, so that lines may be missing"""
        self._is_over = False  # the job is about to end, or cannot be asked any more

    @classmethod
    def of(cls, run: Run, name: str | None, ranks: Collection[int]) -> UnsharedLogs | None:
        """Return the logs of a job whose nodes share no run dir; None if all logs that can be read are on this machine.

        Args:
            run: the run.
            name: the run as the user named it.
            ranks: the ranks that are wanted; empty for all.
        """
        if not any(event["event"] == "node_joined" for event in run.events):
            return None
        logs = cls(run, name, ranks)
        if run.end is None:
            try:
                logs._read_nodes(logs._ask({"what": "nodes"}))
                return logs if len(logs._nodes) > 1 or logs._is_here_apart or run.is_unshared else None
            except NotRunning:
                pass
            except Cannot as error:
                if run.is_unshared or run.agents:
                    logs._say(f"only the logs on this machine are shown: {error.message}")
                return None
        if run.is_unshared:
            logs._say(
                "the nodes of this job share no run dir, and it does not run now: only the logs on this machine are"
                " shown; those of other nodes' ranks are on these nodes"
            )
        return None

    # --- Logs -------------------------------------------------------------------------------------------------

    def attempts(self) -> None:
        """Return None: a node may have logs of other jobs in its run dir, so that only the journal counts."""

    def folders(self, attempt: int) -> Sequence[LogFolder]:
        """Return the places in which logs of an attempt may lie."""
        self._refresh()
        return [self._folder(node, attempt) for node in self._nodes.values()]

    def _folder(self, node: _LogNode, attempt: int) -> LogFolder:
        key = (node.key, attempt)
        if key not in self._folders:
            if node.key == _HEAD and not self._is_here_apart:
                folder = LocalFolder(self._run.log_dir, attempt)
                folder.place = node.name
                folder.gap_reason = _ONLY_ENDS
                self._folders[key] = folder
            else:
                self._folders[key] = _NodeFolder(self, node, attempt)
        return self._folders[key]

    def say_missing(self, attempt: int, hosts: Sequence[str], ranks: Collection[int], found: Mapping[int, Log]) -> None:
        """Say which ranks of an attempt ran on nodes that the head does not reach now.

        Args:
            attempt: number of the attempt.
            hosts: the hosts of its places; empty if they are not known.
            ranks: the ranks that are wanted; empty for all.
            found: the logs that were found, by rank.
        """
        by_host: dict[str, list[int]] = {}
        for rank in sorted(ranks or range(len(hosts) * self._ranks_each)):
            place = rank // self._ranks_each
            if place < len(hosts) and self._is_unreached(rank, found.get(rank)):
                by_host.setdefault(f"node {place} ({hosts[place]})", []).append(rank)
        for host, lost in by_host.items():
            kept = [rank for rank in lost if rank in found]
            shown = f"; the ends of the logs of {_name(kept)} are shown, which the head has kept" if kept else ""
            self._say(f"{_name(lost)} of attempt {attempt} ran on {host}, which the head does not reach now{shown}")
            self.has_failed = True

    def _is_unreached(self, rank: int, log: Log | None) -> bool:
        """Return whether a rank's log is on a node that the head does not reach: the head may have the end of it."""
        if log is None:
            return not any(rank in node.ranks for node in self._nodes.values())
        is_of_head = log.folder.place == self._nodes[_HEAD].name
        return is_of_head and not any(rank in note.lengths for note in log.folder.beginnings())

    # --- asking -----------------------------------------------------------------------------------------------

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the head, again for a while if nobody has time. Raises NotRunning, Cannot."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            answer = ask_job(self._run, self._name, {"do": "logs", **request})
            if not answer.get("busy"):
                return answer
            if time.monotonic() > deadline:
                raise Cannot(f"cannot read these logs now: the network is busy for {_PATIENCE_SECONDS:g} s")
            time.sleep(_BUSY_SECONDS)

    def ask_node(self, node: _LogNode, what: str, **fields: Any) -> dict[str, Any] | None:
        """Ask a node about its logs.

        Args:
            node: the node.
            what: what is asked for, as log_pieces.py lists it.
            fields: the other fields of the request.

        Returns:
            The answer; None if there is none, which was said.
        """
        try:
            answer = self._ask({"what": what, "node": node.key, **fields})
        except (NotRunning, Cannot) as error:
            why = error.message if isinstance(error, Cannot) else "the job does not run any more"
            self._say(f"cannot read the logs on {node.name}: {why}")
            self.has_failed = True
            return None
        node.ahead_seconds = answer["wall"] - answer["head_wall"]
        return answer

    def _refresh(self) -> None:
        """Ask which nodes there are, if the last answer is old. Say which are gone."""
        now = time.monotonic()
        if now < self._asked_at + _REFRESH_SECONDS:
            return
        self._asked_at = now
        try:
            answer = self._ask({"what": "nodes"})
        except NotRunning:
            self._is_over = True
        except Cannot as error:
            self._say(f"cannot ask which nodes have logs: {error.message}")
            self.has_failed = True
            self._is_over = bool(self._run.elsewhere and not self._run.agents)
        else:
            self._read_nodes(answer)

    def ask_whether_over(self) -> bool:
        """Return whether the job has ended, or is about to, so that no more lines will come."""
        self._refresh()
        return self._is_over

    def _read_nodes(self, answer: Mapping[str, Any]) -> None:
        before = self._nodes
        self._is_here_apart = bool(answer.get("asked", {}).get("apart"))
        self._ranks_each = answer["ranks_each"]
        self._is_over = answer["over"]
        head = _LogNode(key=_HEAD, name=f"the machine of the head ({answer['head_host']})", ranks=())
        self._nodes = {_HEAD: before.get(_HEAD, head)}
        for row in answer["nodes"]:
            node = before.get(row["key"], _LogNode(key=row["key"], name="", ranks=()))
            place = "a node standing by" if row["place"] is None else f"node {row['place']}"
            node.name = node.name or f"{place} ({row['host']}, {row['address']})"
            node.ranks = row["ranks"]
            self._nodes[node.key] = node
        for key in before.keys() - self._nodes.keys():
            ranks = before[key].ranks
            which = _name(sorted(ranks)) if ranks else "its ranks"
            self._say(
                f"{before[key].name} is lost or has left: what {which} printed there since can be read once it is back;"
                " the head has the ends of failed ranks' logs"
            )
            self.has_failed = True

    def is_idle(self, node: _LogNode) -> bool:
        """Return whether none of the wanted ranks is on a node now."""
        return bool(self._ranks) and self._ranks.isdisjoint(node.ranks)

    def wants(self, rank: int) -> bool:
        """Return whether a rank's log is wanted."""
        return not self._ranks or rank in self._ranks

    def _say(self, sentence: str) -> None:
        """Write a sentence to stderr, once."""
        if sentence not in self._said:
            self._said.add(sentence)
            sys.stdout.flush()
            click.echo(f"ftctl: {sentence}", err=True)


class _NodeFolder:
    """The logs of one attempt on one node. Implements `LogFolder`; a node that does not answer has no logs."""

    def __init__(self, logs: UnsharedLogs, node: _LogNode, attempt: int) -> None:
        self.place = node.name
        self.attempt = attempt
        self.gap_reason = _ONLY_ENDS if node.key == _HEAD else "as log_max_size asks"
        self._logs = logs
        self._node = node
        self._sizes: dict[int, int] = {}  # bytes of each log, as the node has said last
        self._lacks = False  # none of the wanted ranks has a log here

    def logs(self) -> dict[int, float]:
        """Return the ranks that have logs here, and when each log was written last, in seconds of the head's clock."""
        if self._lacks and self._logs.is_idle(self._node):
            return {}
        answer = self._logs.ask_node(self._node, "list", attempt=self.attempt)
        if answer is None:
            return {}
        rows = [(int(rank), row) for rank, row in answer["logs"].items() if self._logs.wants(int(rank))]
        self._lacks = not rows
        self._sizes = {rank: size for rank, (size, _) in rows}
        return {rank: written_at - self._node.ahead_seconds for rank, (_, written_at) in rows}

    def beginnings(self) -> list[LengthNote]:
        """Return the notes that say where ranks began, of all runs, the oldest first."""
        answer = self._logs.ask_node(self._node, "beginnings", attempt=self.attempt)
        found = []
        for at, lengths, begins in [] if answer is None else answer["notes"]:
            by_rank = {int(rank): length for rank, length in lengths.items()}
            found.append(LengthNote(at - self._node.ahead_seconds, by_rank, begins))
        return found

    def begins_since(self, when: float) -> dict[int, int]:
        """Return where in each log begins what was printed since a time, in bytes by rank.

        Args:
            when: seconds of the epoch.
        """
        here = when + self._node.ahead_seconds
        answer = self._logs.ask_node(self._node, "since", attempt=self.attempt, when=here)
        return {} if answer is None else {int(rank): begin for rank, begin in answer["begins"].items()}

    def read(self, rank: int, offset: int) -> Piece | None:
        """Return the next piece of a rank's log from an offset on; None if there is no more now."""
        if offset >= self._sizes.get(rank, 0):
            return None
        answer = self._logs.ask_node(self._node, "read", attempt=self.attempt, rank=rank, offset=offset)
        if answer is None or not answer["data"]:
            return None
        self._sizes[rank] = max(self._sizes[rank], answer["size"])
        return answer["begin"], base64.b64decode(answer["data"], validate=True)
