"""The process of a rank on another machine, as its agent has reported it to the head."""

from __future__ import annotations

from pathlib import Path


class RemoteProcess:
    """The process of one rank, with the interface of `Leader`; signals go to all ranks of a node through its agent."""

    def __init__(self, rank: int, log: Path) -> None:
        """Create a process that was not started yet.

        Args:
            rank: the rank.
            log: its log, in the run dir that all nodes share.
        """
        self.rank = rank
        self.log = log
        self.pid = 0  # on its machine; 0 before the start
        self.returncode: int | None = None
        self.ending = 0  # the signal that is ending the process, or 0
        self.is_stopped = False
        self.lost = ""
        """why the rank's node counts as lost; empty if it does not"""

    def ended_by(self) -> int:
        """Return the signal that is ending the process, or 0."""
        return self.ending

    def state(self) -> str:
        """Return T if the process is stopped (SIGSTOP), R if it runs, and empty text if it has ended."""
        if self.returncode is not None:
            return ""
        return "T" if self.is_stopped else "R"

    def signal(self, signum: int) -> None:
        """Do nothing: an agent signals all ranks of its node."""

    def kill_group(self) -> None:
        """Do nothing: no rank is replaced alone in a job of several nodes."""
