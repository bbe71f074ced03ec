"""Lists the jobs that run on this machine, from their memory directories alone.

Run dirs are not searched for jobs, because they may lie on storage that does not answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.memory.cleanup import job_dirs
from ftlaunch.memory.directory import APART, Places, read_places
from ftlaunch_contract.files.dirlock import living_holder
from ftlaunch_contract.protocol import memory_root


@dataclass(frozen=True)
class LivingJob:
    """A job whose supervisor or agent lives, by the lock of its memory directory."""

    directory: Path
    """memory directory"""
    places: Places
    pid: int
    """pid of the supervisor or agent"""
    start_time: int
    """start time of that process, which tells it from a later process with the same pid"""

    @property
    def job_id(self) -> str:
        """The job id in the directory's name, which may be shortened; an agent's ends with the number of its node."""
        return self.directory.name.partition(APART)[0]

    def lost(self, journal: str) -> str:
        """Say what is wrong with the job's run dir.

        Args:
            journal: name of the journal's file.

        Returns:
            Words that follow `its`; empty if nothing is wrong, or if storage gives an error now.
        """
        run_dir = Path(self.places.run_dir)
        try:
            found = run_dir.stat()
            if (found.st_dev, found.st_ino) != (self.places.device, self.places.inode):
                return "run dir was deleted"
            (run_dir / journal).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return "run dir has no journal" if run_dir.is_dir() else "run dir was deleted"
        except OSError:
            pass
        return ""


def living_jobs() -> Iterator[LivingJob]:
    """Yield the running jobs of this user."""
    for directory in job_dirs(memory_root(os.getuid())):
        places = read_places(directory)
        holder = living_holder(directory)
        if places is not None and holder is not None:
            pid, start_time = holder
            yield LivingJob(directory=directory, places=places, pid=pid, start_time=start_time)
