"""What is done beside the clearing of a failed attempt: ranks that can only be blocked are not given the whole grace.

A moment after SIGTERM those that are left are looked at as in an autopsy, in a process of its own; `stranded` judges.
Where all have gone by then, which is the ordinary case, nothing is done at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.autopsy import blocked_ranks
from ftlaunch.autopsy.blocked_ranks import BlockedAt
from ftlaunch.autopsy.client import Autopsy
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.ranks.group import RankGroup
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.protocol import Flag

# seconds from SIGTERM to the first look: what dies of it by default, or hears it in a thread, has gone within 0.1 s
_MOMENT = 0.2
_PAUSE = 1.0  # seconds until another look at ranks of which one was at work; then twice as long each time
_FOLDER = "leaving"  # in <run-dir>/autopsy: of the newest look only
_NO_DEATH = ("hang", "preempted")  # the culprit lives, or all save


class Clearing:
    """Watches one attempt after another being cleared. Never waits."""

    def __init__(self, helpers: HelperProcesses, run_dir: Path, memory: Path) -> None:
        """memory: where the ranks' pages are."""
        self.why = ""  # the ranks are to be killed now; "": there is no reason
        self._helpers, self._run_dir, self._memory = helpers, run_dir, memory
        self._autopsy: Autopsy | None = None
        self._dead = -1  # none: nobody is looked at
        self._due, self._pause = 0.0, _PAUSE
        self._left: list[int] = []
        self._before: Mapping[int, BlockedAt] = {}

    def begin(self, cause: Cause | None, gang: RankGroup, now: float) -> None:
        """SIGTERM has gone out because of `cause`; without a death among the ranks nobody is looked at."""
        self.end()
        culprit = None if cause is None or cause.kind in _NO_DEATH else gang.members.get(cause.rank)
        if cause is not None and culprit is not None and culprit.process.returncode is not None:
            self._dead, self._due = cause.rank, now + _MOMENT
            self._left = gang.living

    def look(self, gang: RankGroup, now: float) -> bool:
        """Look on; whether all that are left are to be killed, and then `why` says so."""
        if self._dead < 0:
            return False
        left = gang.living
        if left != self._left:  # what one did that has gone held up the judgement
            self._left, self._pause = left, _PAUSE
            self._due = min(self._due, now + _MOMENT)
        if self._autopsy is not None:
            if self._autopsy.over():
                self._judge(self._autopsy, now)
        elif now >= self._due:
            self._examine(gang, now)
        return bool(self.why)

    def end(self) -> None:
        """No more of it."""
        if self._autopsy is not None:
            self._autopsy.end()
        self.why, self._autopsy, self._before = "", None, {}
        self._dead, self._pause = -1, _PAUSE

    def _examine(self, gang: RankGroup, now: float) -> None:
        subjects = gang.subjects(f"it has not left since rank {self._dead} has ended")
        # one with attach() hears SIGTERM whatever it is in, and takes with it what it can
        if all(entry["stacks"] and not self._attached(gang, entry["rank"]) for entry in subjects):
            self._autopsy = Autopsy(self._helpers, self._run_dir, _FOLDER, self._memory, subjects)
        else:
            self._later(now)

    def _attached(self, gang: RankGroup, rank: int) -> bool:
        page = gang.page(rank)
        return page is not None and bool(page.flags & Flag.ATTACHED)

    def _judge(self, autopsy: Autopsy, now: float) -> None:
        self._autopsy = None
        dumps = autopsy.dumps()
        waits = blocked_ranks.waits({rank: dumps[rank] for rank in self._left if rank in dumps})
        if blocked_ranks.lost(self._before, waits):
            self.why = blocked_ranks.sentence(self._dead, waits)
        self._before = waits
        if waits:
            self._due = now  # a second look makes sure
        else:
            self._later(now)

    def _later(self, now: float) -> None:
        self._due, self._pause = now + self._pause, 2 * self._pause
