"""The examination of a hang: an autopsy of all ranks shows which rank holds up the others.

Runs in the main thread after a hang was detected and before the ranks are ended. A process of its own collects the
stacks; nothing here waits for this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ftlaunch.autopsy import stacks, verdict
from ftlaunch.autopsy.client import Autopsy
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.engine.context import Context
from ftlaunch.health.hang_detection import Late, describe, laggard, measured
from ftlaunch.policy import failure_diagnosis
from ftlaunch.ranks.group import RankGroup
from ftlaunch.ranks.view import RankView
from ftlaunch.reporting.events.base import Note
from ftlaunch.reporting.events.incidents import HangSeen


class HangExamination:
    """Takes the stacks of all ranks of a hanging attempt, and concludes which rank is the cause. Never waits."""

    def __init__(self, context: Context, group: RankGroup) -> None:
        self._context = context
        self._group = group
        self._late: Late | None = None
        self._views: Sequence[RankView] = ()
        self._autopsy: Autopsy | None = None
        self.dumps: Mapping[int, RankDump] = {}
        """the dump of each rank from the last autopsy; empty before the first"""

    @property
    def of_timeout(self) -> bool:
        """Whether the examination was begun because a rank timed out waiting for another."""
        return self._late is not None and self._late.rule == "timeout"

    def suspect(self, late: Late, views: Sequence[RankView]) -> None:
        """Note the late rank that is to be examined, before `begin`.

        Args:
            late: the late rank, and the rule that this rank has broken.
            views: all ranks, at the moment when the rank was found late.
        """
        self._late = late
        self._views = views

    def begin(self) -> None:
        """Start the autopsy of all ranks, and report the hang."""
        context = self._context
        late = self._late
        assert late is not None
        name = f"attempt_{self._group.attempt}"
        context.report(HangSeen(late, context.spec.run_dir / "autopsy" / name))
        stopped = self._group.stopped()
        if stopped:
            context.pages.ask_leave()  # a stopped rank is continued for its stacks, and must not train on
        self._views = [view._replace(stopped=view.rank in stopped) for view in self._views]
        subjects = self._group.subjects(measured(late))
        files = context.files.of(context.spec.run_dir)
        self._autopsy = Autopsy(
            collect=context.collect, run_dir=context.spec.run_dir, files=files, name=name, ranks=subjects
        )

    def find_cause(self, can_replace: Callable[[int], bool]) -> failure_diagnosis.Cause | None:
        """Return the cause of the hang, or None while the autopsy is not over.

        Args:
            can_replace: whether a rank can be restarted alone. No other rank waits for such a rank, and such a rank
                waits for no other.
        """
        late = self._late
        autopsy = self._autopsy
        assert late is not None
        assert autopsy is not None
        if not autopsy.over():
            return None
        dumps = autopsy.dumps()
        self.dumps = dumps
        views = [view for view in self._views if view.rank == late.rank or not can_replace(late.rank)]
        culprit = laggard(verdict.with_dumps(views, dumps))
        finding = verdict.sentence(culprit.rank, dumps)
        sentence = "; ".join(filter(None, [describe(late, culprit), finding]))
        autopsy.conclude(sentence)
        if autopsy.error:
            self._context.report(Note(autopsy.error))
        trace = stacks.main_lines(dumps[culprit.rank].stack) if culprit.rank in dumps else []
        return failure_diagnosis.hang(
            rank=culprit.rank,
            step=culprit.step,
            sentence=sentence,
            trace="\n".join(trace[:12]),
            rules=self._context.rules,
        )

    def end(self) -> None:
        """End an autopsy that may be under way, because the ranks are about to be ended."""
        if self._autopsy is not None:
            self._autopsy.end()

    def pop_autopsy_dir(self) -> str | None:
        """Return the directory of the finished autopsy, and forget the autopsy. None if there was no autopsy."""
        autopsy = self._autopsy
        self._autopsy = None
        return None if autopsy is None else str(autopsy.directory)
