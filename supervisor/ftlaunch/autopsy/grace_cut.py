"""Cuts the grace short when every remaining rank is provably blocked on a dead one, or on one that hangs.

A moment after SIGTERM the ranks that are left are looked at as in an autopsy, in a process of its own; `blocked_ranks`
judges. Where all ranks have gone by then, which is the ordinary case, nothing is done at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.autopsy import blocked_ranks
from ftlaunch.autopsy.blocked_ranks import BlockedAt
from ftlaunch.autopsy.client import Autopsy, Collect
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.ranks.group import RankGroup
from ftlaunch.system.file_thread import FileThread

# seconds from SIGTERM to the first look: what dies of it by default, or hears it in a thread, has gone within 0.1 s
_MOMENT = 0.2
_PAUSE = 1.0  # seconds until another look at ranks of which one was at work; then twice as long each time
_FOLDER = "leaving"  # in <run-dir>/autopsy: of the newest look only
_ALL_SAVE = "preempted"


class GraceCut:
    """Watches the ranks of one attempt leaving. Never waits."""

    def __init__(self, collect: Collect, run_dir: Path, files: FileThread, group: RankGroup) -> None:
        """files: touches the run dir."""
        self.why = ""  # the ranks are to be killed now; empty: there is no reason
        self._collect, self._run_dir, self._files, self._group = collect, run_dir, files, group
        self._autopsy: Autopsy | None = None
        self._dead = -1  # -1: no rank has died or hangs, so none can be blocked on it
        self._hung: RankDump | None = None
        self._due, self._pause = 0.0, _PAUSE
        self._left: list[int] = []
        self._before: Mapping[int, BlockedAt] = {}

    def begin(self, cause: Cause | None, now: float, hang: Mapping[int, RankDump]) -> None:
        """SIGTERM has gone out because of `cause`; without a death or a hang among the ranks none is looked at.

        hang: what the autopsy of a hang has shown: it counts as the first look. Empty: there was none.
        """
        culprit = None if cause is None or cause.kind == _ALL_SAVE else self._group.ranks.get(cause.rank)
        if cause is None or culprit is None:
            return
        self._hung = hang.get(cause.rank) if cause.kind == "hang" else None
        if not culprit.alive or self._hung is not None:
            self._dead, self._due = cause.rank, now + _MOMENT
            self._left = self._group.living
            self._before = blocked_ranks.waits(hang, self._hung)

    def look(self, now: float) -> bool:
        """Look on; whether all ranks that are left are to be killed, and then `why` gives the reason."""
        if self._dead < 0:
            return False
        left = self._group.living
        if left != self._left:  # what a rank did that has gone held up the judgement
            self._left, self._pause = left, _PAUSE
            self._due = min(self._due, now + _MOMENT)
        if self._autopsy is not None:
            if self._autopsy.over():
                self._judge(self._autopsy, now)
        elif now >= self._due:
            self._examine(now)
        return bool(self.why)

    def end(self) -> None:
        """The ranks are gone, or are killed: look no more."""
        if self._autopsy is not None:
            self._autopsy.end()
        self._autopsy, self._dead = None, -1

    def _examine(self, now: float) -> None:
        since = "hangs" if self._hung is not None else "has ended"
        subjects = self._group.subjects(f"it has not left since rank {self._dead} {since}")
        # a rank with attach() hears SIGTERM whatever it is in, and takes with it what it can
        if all(entry["stacks"] and not self._group.ranks[entry["rank"]].attached for entry in subjects):
            self._autopsy = Autopsy(self._collect, self._run_dir, self._files, _FOLDER, subjects)
        else:
            self._later(now)

    def _judge(self, autopsy: Autopsy, now: float) -> None:
        self._autopsy = None
        dumps = autopsy.dumps()
        waits = blocked_ranks.waits({rank: dumps[rank] for rank in self._left if rank in dumps}, self._hung)
        if blocked_ranks.lost(self._before, waits):
            self.why = blocked_ranks.sentence(self._dead, waits)
        self._before = waits
        if waits:
            self._due = now  # a second look makes sure
        else:
            self._later(now)

    def _later(self, now: float) -> None:
        self._due, self._pause = now + self._pause, 2 * self._pause
