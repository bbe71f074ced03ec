"""Between seeing a hang and ending it: an autopsy of the ranks, and from it which rank holds up the others."""

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
    """Takes the stacks of all ranks of an attempt that hangs, and says what they show. Never waits."""

    def __init__(self, context: Context, group: RankGroup) -> None:
        self._context, self._group = context, group
        self._late: Late | None = None
        self._views: Sequence[RankView] = ()
        self._autopsy: Autopsy | None = None
        self.dumps: Mapping[int, RankDump] = {}
        """what the last autopsy has shown of each rank; empty: there was none"""

    @property
    def of_timeout(self) -> bool:
        """Whether it was begun because a rank has timed out waiting for another."""
        return self._late is not None and self._late.rule == "timeout"

    def suspect(self, late: Late, views: Sequence[RankView]) -> None:
        """This rank is late; views: of all ranks at that moment."""
        self._late, self._views = late, views

    def begin(self) -> None:
        """Look at what the ranks are doing."""
        context, late = self._context, self._late
        assert late is not None
        name = f"attempt_{self._group.attempt}"
        context.tell(HangSeen(late, context.spec.run_dir / "autopsy" / name))
        stopped = self._group.stopped()
        if stopped:
            context.pages.ask_leave()  # it must be continued for its stacks: it shall not train on
        self._views = [view._replace(stopped=view.rank in stopped) for view in self._views]
        subjects = self._group.subjects(measured(late))
        files = context.files.of(context.spec.run_dir)
        self._autopsy = Autopsy(context.collect, context.spec.run_dir, files, name, subjects)

    def look(self, can_replace: Callable[[int], bool]) -> failure_diagnosis.Cause | None:
        """The cause, once the autopsy is over.

        can_replace: whether a rank is restarted alone: then no other rank waits for it, nor it for another.
        """
        late, autopsy = self._late, self._autopsy
        assert late is not None
        assert autopsy is not None
        if not autopsy.over():
            return None
        self.dumps = dumps = autopsy.dumps()
        views = [view for view in self._views if view.rank == late.rank or not can_replace(late.rank)]
        culprit = laggard(verdict.with_dumps(views, dumps))
        found = verdict.sentence(culprit.rank, dumps)
        sentence = "; ".join(filter(None, [describe(late, culprit), found]))
        autopsy.conclude(sentence)
        if autopsy.error:
            self._context.tell(Note(autopsy.error))
        trace = stacks.main_lines(dumps[culprit.rank].stack) if culprit.rank in dumps else []
        rules = self._context.rules
        return failure_diagnosis.hang(culprit.rank, culprit.step, sentence, "\n".join(trace[:12]), rules)

    def end(self) -> None:
        """Somebody asked to stop meanwhile: end the autopsy."""
        if self._autopsy is not None:
            self._autopsy.end()

    def forget(self) -> str | None:
        """Forget the finished autopsy; returns its directory, or None where there was none."""
        autopsy, self._autopsy = self._autopsy, None
        return None if autopsy is None else str(autopsy.directory)
