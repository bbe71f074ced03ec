"""Observes signs of life other than steps: what the ranks' processes use, and whether their logs grow.

`LocalRanks.notice` calls the monitor in each turn of the event loop; the monitor decides when an observation is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.ranks.rank import Rank
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import process_activity
from ftlaunch.system.file_thread import FileSystemSilent, FileThread
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch_contract.files.regular_file import file_size
from ftlaunch_contract.protocol import Flag

_LONGEST_INTERVAL_SECONDS = 5.0  # between measurements of what processes use
_SHORTEST_INTERVAL_SECONDS = 0.25
_LOG_INTERVAL_SECONDS = 0.25  # between observations of the logs' sizes
_QUIET_SECONDS = 60.0  # without a step, after which an attached rank's activity is measured; far below any limit


class ActivityMonitor:
    """Keeps `Rank.active` and `Rank.logged` of the ranks of one attempt up to date."""

    def __init__(self, spec: JobSpec, gpus: Gpus, files: FileThread, now: float) -> None:
        """Begin with an attempt that starts now.

        Args:
            spec: the job, whose time limits say how often activity is measured.
            gpus: knows which processes keep a GPU busy.
            files: thread that reads the directory of the logs.
            now: monotonic seconds.
        """
        self._spec = spec
        self._gpus = gpus
        self._files = files
        self._processes_seen = now  # time of the last measurement of processes
        self._logs_seen = now  # time of the last observation of the logs
        timeouts = (
            spec.limits.hang_timeout,
            spec.limits.startup_timeout,
            spec.limits.exit_timeout,
            spec.limits.idle_timeout,
        )
        limits = [limit for limit in timeouts if isinstance(limit, float)]
        quarter = min(limits, default=_LONGEST_INTERVAL_SECONDS) / 4
        self._interval_seconds = min(max(quarter, _SHORTEST_INTERVAL_SECONDS), _LONGEST_INTERVAL_SECONDS)

    def observe(self, ranks: Mapping[int, Rank], now: float) -> None:
        """Make the observations that are due.

        Args:
            ranks: the started ranks by number.
            now: monotonic seconds.
        """
        if now - self._processes_seen >= self._interval_seconds:
            self._measure_processes(ranks, now)
            self._processes_seen = now
        if self._spec.limits.log_timeout is not None and now - self._logs_seen >= _LOG_INTERVAL_SECONDS:
            self._observe_logs(ranks, now)
            self._logs_seen = now

    def _measure_processes(self, ranks: Mapping[int, Rank], now: float) -> None:
        """Measure what the processes of quiet ranks use, and set `active` of those that did something."""
        quiet = {rank.process.pid: rank for rank in ranks.values() if rank.alive and self._is_quiet(rank, now)}
        if not quiet:
            return
        self._gpus.ask()
        logs = self._log_sizes({pid: rank.log for pid, rank in quiet.items()})
        logged = {pid: rank.usage.logged if logs is None else logs[pid] for pid, rank in quiet.items()}
        for pid, used in process_activity.usage(quiet, logged, self._gpus.busy).items():
            rank = quiet[pid]
            # A rank that was not quiet for a while was not measured, so that the difference would mean nothing.
            is_comparable = (
                rank.measured_at >= self._processes_seen or now - rank.measured_at < 3 * self._interval_seconds
            )
            if is_comparable and process_activity.is_active(rank.usage, used, now - rank.measured_at):
                rank.active = now
            rank.usage = used
            rank.measured_at = now

    def _is_quiet(self, rank: Rank, now: float) -> bool:
        """Return whether the rank is judged by its activity, or soon may have to be."""
        page = rank.page
        if page is None or not page.flags & Flag.ATTACHED or self._spec.limits.idle_timeout is not None:
            return True
        return self._spec.limits.hang_timeout == "auto" and now - page.beat_ns / 1e9 > _QUIET_SECONDS

    def _observe_logs(self, ranks: Mapping[int, Rank], now: float) -> None:
        """Set `logged` of the ranks whose logs have grown, or may have."""
        sizes = self._log_sizes({number: rank.log for number, rank in ranks.items()})
        for number, rank in ranks.items():
            if sizes is None or sizes[number] != rank.log_size:  # a log that cannot be seen may be growing
                rank.logged = now
            if sizes is not None:
                rank.log_size = sizes[number]

    def _log_sizes(self, logs: Mapping[int, Path]) -> Mapping[int, int] | None:
        """Return the bytes of each log, by the keys of `logs`; None if their file system does not answer.

        A silent file system is reported elsewhere.
        """
        try:
            return self._files.call(lambda: {key: file_size(log) for key, log in logs.items()})
        except FileSystemSilent:
            return None

    def is_busy(self, rank: Rank, beat: float) -> bool:
        """Return whether the rank's processes were active after the measurement that covered the work of the last beat.

        Args:
            rank: the rank.
            beat: time of the rank's last beat.
        """
        return (
            rank.active - beat > 1.5 * self._interval_seconds
            and self._processes_seen - rank.active < 3 * self._interval_seconds
        )
