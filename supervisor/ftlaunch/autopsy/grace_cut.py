"""Cuts the grace short where the ranks that remain can do nothing with it.

After a hang, ranks with hooks are not killed at once: a rank that waits for the one that hangs leaves by itself, and
leaves its devices in order, which a rank that is killed cannot do (public reports tell of GPUs that were lost when
ranks were killed in the middle of NCCL's transfers). The grace is over once only the rank that hangs remains, or when
all have had the time to leave.

Ranks without hooks are killed if every remaining one is provably blocked on a dead rank, or on a rank that hangs. A
moment after SIGTERM, a collector examines them as in an autopsy, in a process of its own, and `blocked_ranks` judges
the dumps. In the ordinary case all ranks have gone by then, and nothing is examined.

The supervisor's event loop calls a `GraceCut`, which never waits for the collector.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.autopsy import blocked_ranks
from ftlaunch.autopsy.blocked_ranks import BlockedAt
from ftlaunch.autopsy.client import LEAVING, Autopsy, Collect
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.policy.cause_kinds import HANG, PREEMPTED
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.ranks.group import RankGroup
from ftlaunch.system.file_thread import FileThread

# From SIGTERM to the first examination. A rank whose default action or thread handles the signal has gone
# within 0.1 s.
_FIRST_PAUSE_SECONDS = 0.2
# In which ranks with hooks leave after a hang: longer than they wait for their devices (parking.py of the hooks).
_PARKING_SECONDS = 5.0
_PAUSE_SECONDS = 1.0  # until the next examination if some rank was at work; doubled each time


class GraceCut:
    """Watches the ranks of one attempt while they leave. `why` says why they are to be killed; empty: no reason."""

    def __init__(self, collect: Collect, run_dir: Path, files: FileThread, group: RankGroup) -> None:
        """Watch nothing until `begin`.

        Args:
            collect: starts a collector.
            run_dir: run dir of the job.
            files: thread that touches the run dir.
            group: the ranks of the attempt.
        """
        self.why = ""
        self._collect = collect
        self._run_dir = run_dir
        self._files = files
        self._group = group
        self._autopsy: Autopsy | None = None  # the examination under way
        self._culprit = -1  # the rank that is dead or hangs; -1: nothing is watched
        self._hung: RankDump | None = None  # the culprit's dump, if the culprit hangs
        self._parked_by: float | None = None  # monotonic seconds by which ranks with hooks leave after a hang
        self._due = 0.0  # monotonic seconds of the next examination
        self._pause_seconds = _PAUSE_SECONDS
        self._left: list[int] = []
        self._before: Mapping[int, BlockedAt] = {}  # result of the examination before

    def begin(self, cause: Cause | None, now: float, hang: Mapping[int, RankDump], *, are_attached: bool) -> None:
        """Begin to watch after SIGTERM was sent, if the cause is the death or the hang of a rank.

        Args:
            cause: why the ranks are to leave; None: no rank has failed.
            now: monotonic seconds.
            hang: dumps of the autopsy of a hang, by rank, which count as the first examination; empty: no autopsy.
            are_attached: whether all ranks have hooks, which leave by themselves.
        """
        # After a preemption all ranks save, so that none is blocked on the culprit.
        culprit = None if cause is None or cause.kind == PREEMPTED else self._group.ranks.get(cause.rank)
        if cause is None or culprit is None:
            return
        if cause.kind == HANG and are_attached:
            self._culprit = cause.rank
            self._due = now + _FIRST_PAUSE_SECONDS
            self._parked_by = now + _PARKING_SECONDS
            return
        self._hung = hang.get(cause.rank) if cause.kind == HANG else None
        if not culprit.alive or self._hung is not None:
            self._culprit = cause.rank
            self._due = now + _FIRST_PAUSE_SECONDS
            self._left = self._group.living
            self._before = blocked_ranks.waits(hang, self._hung)

    def poll(self, now: float) -> bool:
        """Examine the ranks if an examination is due. Return whether all remaining ranks are to be killed.

        Args:
            now: monotonic seconds.
        """
        if self._culprit < 0:
            return False
        left = self._group.living
        if self._parked_by is not None:
            self.why = self._judge_parking(left, now, self._parked_by)
            return bool(self.why)
        if left != self._left:  # a rank that was at work has gone, so that the others may be blocked now
            self._left = left
            self._pause_seconds = _PAUSE_SECONDS
            self._due = min(self._due, now + _FIRST_PAUSE_SECONDS)
        if self._autopsy is not None:
            if self._autopsy.over():
                self._judge(self._autopsy, now)
        elif now >= self._due:
            self._examine(now)
        return bool(self.why)

    def _judge_parking(self, left: list[int], now: float, parked_by: float) -> str:
        """Return why the ranks that are left are to be killed; "" while they have time."""
        if left == [self._culprit] and now >= self._due:
            return f"rank {self._culprit} hangs, and does not leave by itself: SIGKILL"
        if left and now >= parked_by:
            ranks = ", ".join(map(str, left))
            return f"rank {ranks} did not leave within {_PARKING_SECONDS:g} s of the hang: SIGKILL"
        return ""

    def end(self) -> None:
        """Stop watching, because the ranks are gone or are being killed."""
        if self._autopsy is not None:
            self._autopsy.end()
        self._autopsy = None
        self._culprit = -1

    def _examine(self, now: float) -> None:
        """Start a collector if all remaining ranks can show their stacks and none is attached."""
        since = "hangs" if self._hung is not None else "has ended"
        subjects = self._group.subjects(f"it has not left since rank {self._culprit} {since}")
        # The hooks of an attached rank handle SIGTERM in any call, and save what they can.
        if all(entry["stacks"] and not self._group.ranks[entry["rank"]].attached for entry in subjects):
            self._autopsy = Autopsy(
                collect=self._collect, run_dir=self._run_dir, files=self._files, name=LEAVING, ranks=subjects
            )
        else:
            self._examine_later(now)

    def _judge(self, autopsy: Autopsy, now: float) -> None:
        """Set `why` if all remaining ranks are blocked where they were blocked before; else plan an examination."""
        self._autopsy = None
        dumps = autopsy.dumps()
        waits = blocked_ranks.waits({rank: dumps[rank] for rank in self._left if rank in dumps}, self._hung)
        if blocked_ranks.lost(self._before, waits):
            self.why = blocked_ranks.sentence(self._culprit, waits)
        self._before = waits
        if waits:
            self._due = now  # a second examination makes sure
        else:
            self._examine_later(now)

    def _examine_later(self, now: float) -> None:
        self._due = now + self._pause_seconds
        self._pause_seconds *= 2
