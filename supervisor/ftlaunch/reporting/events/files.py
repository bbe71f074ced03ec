"""Events about file systems that do not answer the supervisor. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority


@dataclass(frozen=True)
class FilesSilent(JobEvent):
    """A file system of the run dir, the logs or the checkpoints does not answer the supervisor."""

    name = "files_silent"
    priority = Priority.WARNING
    place: Path
    seconds: float
    waiting: int
    """number of writes that wait"""

    def fields(self) -> dict[str, Any]:
        """Return the place, the length of the silence in seconds, and how many writes wait."""
        return {"place": str(self.place), "seconds": round(self.seconds, 1), "waiting": self.waiting}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return (
            f"the file system of {self.place} has not answered for {duration(self.seconds)}: the ranks go on, and what"
            " is to be written there waits in memory"
        )


@dataclass(frozen=True)
class FilesAnswer(JobEvent):
    """A file system answers again after `files_silent`."""

    name = "files_answer"
    place: Path
    seconds: float
    lost: int
    """lines of the journal that are lost, because memory had no room for them"""

    def fields(self) -> dict[str, Any]:
        """Return the place, the length of the silence in seconds, and how many events were lost."""
        return {"place": str(self.place), "seconds": round(self.seconds, 1), "lost": self.lost}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        written = "everything that waited is written"
        if self.lost == 1:
            written = "1 event was too much to wait in memory, and is missing in the journal"
        elif self.lost:
            written = f"{self.lost} events were too many to wait in memory, and are missing in the journal"
        return f"the file system of {self.place} answers again, after {duration(self.seconds)}: {written}"
