"""The jobs that run on this machine, as their memory directories say it: no run dir is looked at."""

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
    """A memory directory whose supervisor or agent lives."""

    directory: Path
    places: Places
    pid: int
    start_time: int

    @property
    def job_id(self) -> str:
        """The id, as far as the name of the directory has it: of an agent it ends with its node."""
        return self.directory.name.partition(APART)[0]

    def lost(self, journal: str) -> str:
        """What is wrong with its run dir, as words behind `its`; empty: nothing, or storage does not answer now."""
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
    """Those of this user."""
    for directory in job_dirs(memory_root(os.getuid())):
        places, holder = read_places(directory), living_holder(directory)
        if places is not None and holder is not None:
            yield LivingJob(directory, places, *holder)
