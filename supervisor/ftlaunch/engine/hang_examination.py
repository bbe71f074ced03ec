"""What comes between seeing a hang and ending it: an autopsy of the ranks, and from it who holds up the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ftlaunch.autopsy import stacks, verdict
from ftlaunch.autopsy.client import Autopsy
from ftlaunch.health import hang_detection
from ftlaunch.policy import failure_diagnosis
from ftlaunch.policy.fault_rules import FaultRule
from ftlaunch.ranks import view
from ftlaunch.ranks.group import RankGroup
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.system.helper_process import HelperProcesses


class Examining:
    """Of one attempt after another. Never waits."""

    def __init__(
        self,
        helpers: HelperProcesses,
        run_dir: Path,
        memory: Path,
        fault_rules: Sequence[FaultRule],
        reporter: Reporter,
    ) -> None:
        """memory: where the ranks' pages are."""
        self._helpers, self.reporter = helpers, reporter
        self._run_dir, self._memory, self._rules = run_dir, memory, fault_rules
        self._late: hang_detection.Late | None = None
        self._views: list[view.RankView] = []
        self._autopsy: Autopsy | None = None

    def begin_attempt(self) -> None:
        """Nothing is held against its ranks."""
        self._late, self._autopsy = None, None

    def suspect(self, late: hang_detection.Late, views: list[view.RankView]) -> None:
        """This rank is late; views: of all at that moment."""
        self._late, self._views = late, views

    def begin(self, gang: RankGroup) -> None:
        """Look at what the ranks are doing."""
        late = self._late
        assert late is not None
        self.reporter.hang_seen(late)
        stopped = gang.stopped()
        if stopped:
            gang.pages.ask_leave()  # it must be continued for its stacks: it shall not train on
        self._views = [replace(view, stopped=view.rank in stopped) for view in self._views]
        subjects = gang.subjects(hang_detection.measured(late))
        self._autopsy = Autopsy(self._helpers, self._run_dir, f"attempt_{gang.attempt}", self._memory, subjects)

    def look(self, can_replace: Callable[[int], bool]) -> failure_diagnosis.Cause | None:
        """What it was, once the autopsy is over. can_replace: no rank waits for this one, nor it for another."""
        late, autopsy = self._late, self._autopsy
        assert late is not None
        assert autopsy is not None
        if not autopsy.over():
            return None
        dumps = autopsy.dumps()
        views = [view for view in self._views if view.rank == late.rank or not can_replace(late.rank)]
        culprit = hang_detection.laggard(verdict.with_dumps(views, dumps))
        found = verdict.sentence(culprit.rank, dumps)
        sentence = "; ".join(filter(None, [hang_detection.describe(late, culprit), found]))
        autopsy.conclude(sentence)
        if autopsy.error:
            self.reporter.say(autopsy.error)
        trace = stacks.main_lines(dumps[culprit.rank].stack) if culprit.rank in dumps else []
        return failure_diagnosis.hang(culprit.rank, culprit.step, sentence, "\n".join(trace[:12]), self._rules)

    def end(self) -> None:
        """Somebody asked to stop meanwhile: no more of it."""
        if self._autopsy is not None:
            self._autopsy.end()

    def let_go(self) -> str | None:
        """It is over: returns where the autopsy lies, where there was one."""
        autopsy, self._autopsy = self._autopsy, None
        return None if autopsy is None else str(autopsy.directory)
