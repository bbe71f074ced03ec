"""Signs of life beside steps: what the ranks' processes use, and whether their logs grow. Looked at now and then."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import process_activity
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch_contract.protocol import Flag

if TYPE_CHECKING:
    from ftlaunch.ranks.group import Rank, RankGroup

_LOOK_MOST, _LOOK_LEAST = 5.0, 0.25  # seconds between looks at what processes use
_LOOK_LOGS = 0.25  # seconds between looks at the logs' sizes
_QUIET = 60.0  # seconds without a step, after which it is looked at what a rank with hooks does; far below any limit


class Signs:
    """Keeps `active` and `logged` of the members of one attempt."""

    def __init__(self, spec: JobSpec, gpus: Gpus, now: float) -> None:
        """The attempt begins now."""
        self.spec, self._gpus = spec, gpus
        self._looked = self._read = now  # at processes, at logs
        asked = (
            spec.limits.hang_timeout,
            spec.limits.startup_timeout,
            spec.limits.exit_timeout,
            spec.limits.idle_timeout,
        )
        limits = [limit for limit in asked if isinstance(limit, float)]
        self._every = min(max(min(limits, default=_LOOK_MOST) / 4, _LOOK_LEAST), _LOOK_MOST)

    def look(self, gang: RankGroup, now: float) -> None:
        """Look at what it is time for."""
        if now - self._looked >= self._every:
            self._look_at_processes(gang, now)
            self._looked = now
        if self.spec.limits.log_timeout is not None and now - self._read >= _LOOK_LOGS:
            self._look_at_logs(gang, now)
            self._read = now

    def _look_at_processes(self, gang: RankGroup, now: float) -> None:
        quiet = {
            member.process.pid: (member, gang.log(rank))
            for rank, member in gang.members.items()
            if member.process.returncode is None and self._is_quiet(gang, rank, now)
        }
        if not quiet:
            return
        self._gpus.ask()
        found = process_activity.usage(quiet, {pid: log for pid, (_, log) in quiet.items()}, self._gpus.busy)
        for pid, used in found.items():
            member = quiet[pid][0]
            # else it was not looked at meanwhile
            known = member.looked >= self._looked or now - member.looked < 3 * self._every
            if known and process_activity.is_active(member.usage, used, now - member.looked):
                member.active = now
            member.usage, member.looked = used, now

    def _is_quiet(self, gang: RankGroup, rank: int, now: float) -> bool:
        """Whether activity is what this rank has to be judged by, or may have to be."""
        page = gang.page(rank)
        if page is None or not page.flags & Flag.ATTACHED or self.spec.limits.idle_timeout is not None:
            return True
        return self.spec.limits.hang_timeout == "auto" and now - page.beat_ns / 1e9 > _QUIET

    def _look_at_logs(self, gang: RankGroup, now: float) -> None:
        for rank, member in gang.members.items():
            size = _size(gang.log(rank))
            if size != member.log_size:
                member.log_size, member.logged = size, now

    def is_busy(self, member: Rank, beat: float) -> bool:
        """Whether its processes were still doing something at a look after the one that saw the last beat's work."""
        return member.active - beat > 1.5 * self._every and self._looked - member.active < 3 * self._every


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
