"""The nodes of a job that do not share the head's run dir, or its checkpoint dir, as the head sees them.

The head keeps what such nodes send of their files, sends them copies of what lies in its run dir, and says once what
they do without. It marks its run dir: an agent that finds the mark in the run dir of its own machine knows that a sign
of life there may be what an earlier job has left, when this machine was the head's. Runs in the head's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.history.runs import CLAIMS, UNSHARED
from ftlaunch.nodes.cluster.membership import plan as plans
from ftlaunch.nodes.cluster.membership.plan import Plan
from ftlaunch.nodes.cluster.mirrors.node_files import NodeFiles
from ftlaunch.nodes.cluster.mirrors.run_dir_copies import CopyHolder, RunDirCopies
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThreads

RUN_DIR = "run_dir"
CHECKPOINT_DIR = "checkpoint_dir"


class UnsharedNode(CopyHolder, Protocol):
    """What is asked of a node."""

    apart: frozenset[str]
    """which of RUN_DIR and CHECKPOINT_DIR the node does not share"""
    address: str
    """the address of its machine"""
    head: str
    """the address of the head's machine"""


def is_marked(run_dir: Path) -> bool:
    """Return whether a head of this run dir had nodes that do not share it."""
    return (run_dir / CLAIMS / UNSHARED).exists()


class UnsharedNodes:
    """The nodes of one job that lack a directory of the head's."""

    def __init__(
        self,
        spec: JobSpec,
        files: FileThreads,
        clock: Callable[[], float],
        say: Callable[[str], None],
        *,
        may_move: bool,
    ) -> None:
        """Begin without nodes.

        Args:
            spec: the job.
            files: the threads that touch the run dir and the logs.
            clock: monotonic seconds.
            say: writes a sentence to the head's terminal.
            may_move: whether a head on another machine can take this one's place.
        """
        self._spec = spec
        self._may_move = may_move
        self._in_run_dir = files.of(spec.run_dir)
        self._say = say
        self._files = NodeFiles(spec, files, say)
        self._copies = RunDirCopies(spec.run_dir, self._in_run_dir, clock)
        self._said: set[str] = set()

    def record_ready(self, node: UnsharedNode, message: Mapping[str, Any]) -> None:
        """Take note of which directories a node shares, as its message `ready` says.

        Raises:
            ValueError: the message is malformed; KeyError and TypeError can be raised for the same reason.
        """
        node.apart = frozenset(message["apart"])
        mark = self._spec.run_dir / CLAIMS / UNSHARED
        if RUN_DIR not in node.apart:
            if node.address != node.head:  # a node of another machine: the run dir is shared now
                self._in_run_dir.write(lambda: mark.unlink(missing_ok=True), _ignore)
            return
        size, digest = message["journal"]
        self._copies.begin(node, int(size), str(digest))
        self._in_run_dir.write(mark.touch, _ignore)
        stays = "" if self._may_move else ", and the head stays on this machine"
        self._say_once(f"the nodes do not all share the run dir: each of them keeps its own logs{stays}")
        if CHECKPOINT_DIR in node.apart and self._spec.saving.checkpoint_store is None:
            self._say_once(
                "the nodes share no checkpoint directory, so that no checkpoint can be saved: the newest steps stay in"
                " the memory of the nodes alone; give `--checkpoint-dir` a directory that all nodes share, or the"
                " address of a store (s3://BUCKET/PREFIX)"
            )

    def are_among(self, nodes: Iterable[UnsharedNode]) -> bool:
        """Return whether one of `nodes` does not share the run dir."""
        return any(RUN_DIR in node.apart for node in nodes)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)

    def keep(self, message: Mapping[str, Any], ranks: range) -> None:
        """Keep a file of a node, or a part of it.

        Args:
            message: the message `file`.
            ranks: the ranks of the node's place.

        Raises:
            ValueError: the message names no file that the node may send.
        """
        self._files.keep(message, ranks)

    def send_copies(self, nodes: Iterable[UnsharedNode]) -> None:
        """Send those of `nodes` that do not share the run dir what has changed there."""
        self._copies.send(node for node in nodes if RUN_DIR in node.apart)

    def send_plan(self, nodes: Iterable[UnsharedNode], plan: Plan) -> None:
        """Send the plan of an attempt to the nodes that do not share the run dir, before they hear of the attempt."""
        for node in nodes:
            if RUN_DIR in node.apart:
                self._copies.send_file(node, plans.NAME, plans.dump(plan))

    def send_rest_of_journal(self, nodes: Iterable[UnsharedNode]) -> None:
        """Send all that the nodes lack of the journal, because they are about to end. Waits a moment for the disk."""
        self._copies.send_rest(node for node in nodes if RUN_DIR in node.apart)


def _ignore(error: OSError) -> None:
    """Ignore that the mark cannot be changed: it only matters once this job is forgotten."""
