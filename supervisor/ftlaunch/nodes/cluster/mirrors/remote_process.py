"""The process of a rank on another machine, as far as it is known here."""

from __future__ import annotations

from pathlib import Path


class RemoteProcess:
    """Like `Leader`, but signals go to all ranks of a node, through its agent (see ClusterRanks)."""

    def __init__(self, rank: int, log: Path) -> None:
        """log: on the run dir that all nodes share."""
        self.rank = rank
        self.log = log
        self.pid = 0  # on its machine; 0: it has not been started yet
        self.returncode: int | None = None
        self.ending = 0  # the signal that its agent has seen ending it
        self.is_stopped = False
        self.lost = ""
        """why its node counts as lost; empty where it does not"""

    def ended_by(self) -> int:
        """The signal that ends the process, while the kernel still frees what it held; 0 otherwise."""
        return self.ending

    def state(self) -> str:
        """T where the process is stopped (SIGSTOP); else R, or nothing where it is gone."""
        if self.returncode is not None:
            return ""
        return "T" if self.is_stopped else "R"

    def signal(self, signum: int) -> None:
        """Nothing: the agent signals all ranks of its node."""

    def kill_group(self) -> None:
        """Nothing: no rank is replaced alone where there are several nodes."""
