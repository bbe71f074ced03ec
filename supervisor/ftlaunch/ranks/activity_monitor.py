"""Signs of life beside steps: what the ranks' processes use, and whether their logs grow. Looked at now and then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.ranks.log_files import size
from ftlaunch.ranks.rank import Rank
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import process_activity
from ftlaunch.system.file_thread import FileSystemSilent, FileThread
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch_contract.protocol import Flag

_LOOK_MOST, _LOOK_LEAST = 5.0, 0.25  # seconds between looks at what processes use
_LOOK_LOGS = 0.25  # seconds between looks at the logs' sizes
_QUIET = 60.0  # seconds without a step, after which it is looked at what a rank with hooks does; far below any limit


class ActivityMonitor:
    """Keeps `active` and `logged` of the ranks of one attempt."""

    def __init__(self, spec: JobSpec, gpus: Gpus, files: FileThread, now: float) -> None:
        """The attempt begins now. files: touches the directory of the logs."""
        self.spec, self._gpus, self._files = spec, gpus, files
        self._looked = self._read = now  # at processes, at logs
        asked = (
            spec.limits.hang_timeout,
            spec.limits.startup_timeout,
            spec.limits.exit_timeout,
            spec.limits.idle_timeout,
        )
        limits = [limit for limit in asked if isinstance(limit, float)]
        self._every = min(max(min(limits, default=_LOOK_MOST) / 4, _LOOK_LEAST), _LOOK_MOST)

    def look(self, ranks: Mapping[int, Rank], now: float) -> None:
        """Look at what it is time for."""
        if now - self._looked >= self._every:
            self._look_at_processes(ranks, now)
            self._looked = now
        if self.spec.limits.log_timeout is not None and now - self._read >= _LOOK_LOGS:
            self._look_at_logs(ranks, now)
            self._read = now

    def _look_at_processes(self, ranks: Mapping[int, Rank], now: float) -> None:
        quiet = {rank.process.pid: rank for rank in ranks.values() if rank.alive and self._is_quiet(rank, now)}
        if not quiet:
            return
        self._gpus.ask()
        logs = self._log_sizes({pid: rank.log for pid, rank in quiet.items()})
        logged = {pid: rank.usage.logged if logs is None else logs[pid] for pid, rank in quiet.items()}
        for pid, used in process_activity.usage(quiet, logged, self._gpus.busy).items():
            rank = quiet[pid]
            # a rank that was not quiet meanwhile has not been looked at: the difference would tell nothing
            known = rank.looked >= self._looked or now - rank.looked < 3 * self._every
            if known and process_activity.is_active(rank.usage, used, now - rank.looked):
                rank.active = now
            rank.usage, rank.looked = used, now

    def _is_quiet(self, rank: Rank, now: float) -> bool:
        """Whether activity is what this rank has to be judged by, or may have to be."""
        page = rank.page
        if page is None or not page.flags & Flag.ATTACHED or self.spec.limits.idle_timeout is not None:
            return True
        return self.spec.limits.hang_timeout == "auto" and now - page.beat_ns / 1e9 > _QUIET

    def _look_at_logs(self, ranks: Mapping[int, Rank], now: float) -> None:
        sizes = self._log_sizes({number: rank.log for number, rank in ranks.items()})
        for number, rank in ranks.items():
            if sizes is None or sizes[number] != rank.log_size:  # a log that cannot be seen may be growing
                rank.logged = now
            if sizes is not None:
                rank.log_size = sizes[number]

    def _log_sizes(self, logs: Mapping[int, Path]) -> Mapping[int, int] | None:
        """Return how long each log is; None where their file system does not answer, which is told elsewhere."""
        try:
            return self._files.call(lambda: {key: size(log) for key, log in logs.items()})
        except FileSystemSilent:
            return None

    def is_busy(self, rank: Rank, beat: float) -> bool:
        """Whether its processes were still doing something at a look after the one that saw the last beat's work."""
        return rank.active - beat > 1.5 * self._every and self._looked - rank.active < 3 * self._every
