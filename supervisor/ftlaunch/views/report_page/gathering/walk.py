"""Walks along a journal and gathers what the page shows, in bounded memory. Pure, but for `walked`, which reads."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy, deepcopy
from typing import Any

from ftlaunch.history.events import NewestStep, sound
from ftlaunch.history.goodput import Teller
from ftlaunch.history.story import HistoryEntry, Incident, Story
from ftlaunch.history.timeline import Moment, TimeLine
from ftlaunch.views.metrics.traces.phases import RestartPhases
from ftlaunch.views.report_page.gathering.columns import Columns
from ftlaunch.views.report_page.gathering.kept_incidents import KeptIncidents
from ftlaunch.views.report_page.gathering.lanes import Bars, Spans
from ftlaunch.views.report_page.gathering.node_lanes import NodeLanes
from ftlaunch.views.report_page.gathering.step_lines import StepLines

FIRST_ENTRIES = 20
NEWEST_ENTRIES = 180
_OWN_ENTRIES = (
    "rank_slow",
    "rank_slow_over",
    "unsound",
    "rolled_back",
    "memory_reduced",
)  # entries besides the teller's
_GRADES = {"checkpoint_committed": 0, "abnormal": 1, "checkpoint_failed": 2, "checkpoint_rejected": 3}
"""importance of a checkpoint"""
_MAX_ATTEMPTS = 100_000  # remembered attempts, and remembered restarted ranks of one attempt


class Walk:
    """The findings of a page, gathered from the events of a journal in their order."""

    def __init__(self, *, hooked: bool) -> None:
        """Begin before the first event. hooked: whether the ranks report their steps, which `resumed` shows."""
        self.dropped: Counter[str] = Counter()
        """number of unusable lines and fields, by reason"""
        self.columns: Columns | None = None
        self.spans = Spans()
        self.attempts = Bars()
        self.checkpoints = Bars()
        self.incidents = KeptIncidents()
        self.lines = StepLines()
        self.nodes = NodeLanes()
        self.first_entries: list[HistoryEntry] = []
        self.newest_entries: deque[HistoryEntry] = deque(maxlen=NEWEST_ENTRIES)
        self.entries = 0
        self.newest_step = NewestStep()
        self.start: Mapping[str, Any] = {}
        """the newest `job_started`"""
        self.end: Mapping[str, Any] | None = None
        """the event that ended the newest run; None if the run has no end"""
        self.begun_in: dict[int, int] = {}
        """by number of an attempt: the newest run of the supervisor with such an attempt"""
        self.renewed: set[tuple[int, int]] = set()
        """attempt and rank of each rank that was restarted alone since the newest attempt began"""
        self._open: tuple[float, int] | None = None  # begin and number of the present attempt
        self._left: float | None = None  # time at which the present attempt seemed to end
        self._phases = RestartPhases()
        self._line = TimeLine()
        self._teller = Teller(hooked, self._spend)
        self.moments = 0

    @property
    def resumed(self) -> bool:
        """Whether some event reports a resume; a walk that is not `hooked` must then begin again from the start."""
        return self._line.resumed

    @property
    def story(self) -> Story:
        """The story up to now."""
        return self._teller.story

    def apply(self, event: dict[str, Any]) -> None:
        """Process the next event of the journal."""
        for moment in self._line.add(sound(event, self.dropped)):
            self._apply(moment)

    def closed(self) -> Walk:
        """Return a walk that is finished, as if the journal ended here. This walk can go on.

        The finished walk shares what its finishing does not change.
        """
        other = copy(self)
        other._teller = self._teller.copied(other._spend)
        other.columns = None if self.columns is None else self.columns.copied()
        other.spans = self.spans.copied()
        other.attempts = self.attempts.copied()
        other.checkpoints = self.checkpoints.copied()
        other.incidents = self.incidents.copied()
        other.nodes = deepcopy(self.nodes)
        if self._line.held:
            other.lines = deepcopy(self.lines)
            other.dropped = self.dropped.copy()
            other.first_entries = self.first_entries.copy()
            other.newest_entries = self.newest_entries.copy()
            other.begun_in = self.begun_in.copy()
            other.renewed = self.renewed.copy()
            other.newest_step = copy(self.newest_step)
            other._phases = deepcopy(self._phases)
        for moment in self._line.held:
            other._apply(moment)
        end = other._teller.close().end
        other._end_attempt(end)
        other.incidents.end(end)
        return other

    def _apply(self, moment: Moment) -> None:
        self.moments += 1
        if self.columns is None:
            self.columns = Columns(moment.wall)
        before = self._teller.story.steps_lost
        self._teller.apply(moment)
        story = self._teller.story
        if story.steps_lost > before:
            self.columns.lose(moment.wall, story.steps_lost - before)
        if RestartPhases.has_handler(moment.event):
            for restart in self._phases.apply(moment.fields):
                self.incidents.restarted(restart.phases)
        for entry in story.entries:
            if isinstance(entry, Incident):
                self.incidents.add(entry, moment.fields, story, self._teller.mean_step or 0.0)
                self.columns.incident(entry.at)
            else:
                self._enter(entry)
        story.entries.clear()
        if moment.event in _OWN_ENTRIES:
            self._enter(HistoryEntry(moment.wall, moment.event, moment.attempt, dict(moment.fields)))
        if moment.event in NewestStep.EVENTS:
            self.newest_step.apply(moment.event, moment.fields)
        if (handle := _HANDLERS.get(moment.event)) is not None:
            handle(self, moment)
        self.nodes.apply(moment)

    def _spend(self, name: str, begin: float, end: float) -> None:
        assert self.columns is not None
        self.columns.spend(name, begin, end)
        self.spans.add(name, begin, end)

    def _enter(self, entry: HistoryEntry) -> None:
        self.entries += 1
        if len(self.first_entries) < FIRST_ENTRIES:
            self.first_entries.append(entry)
        else:
            self.newest_entries.append(entry)

    # --- events -----------------------------------------------------------------------------------------------

    def _on_started(self, moment: Moment) -> None:
        self._end_attempt(moment.wall if self._left is None else self._left)
        self.start = moment.fields
        self.end = None
        self.incidents.end(moment.wall)

    def _on_attempt(self, moment: Moment) -> None:
        self._end_attempt(moment.wall if self._left is None else self._left)
        self._open = moment.wall, moment.attempt
        self.begun_in.pop(moment.attempt, None)
        self.begun_in[moment.attempt] = self._teller.story.runs
        if len(self.begun_in) > _MAX_ATTEMPTS:
            del self.begun_in[next(iter(self.begun_in))]
        self.renewed.clear()

    def _end_attempt(self, at: float) -> None:
        if self._open is not None:
            begin, number = self._open
            self.attempts.add(begin, max(at, begin), number)
        self._open = self._left = None

    def _on_left(self, moment: Moment) -> None:
        self._left = moment.wall

    def _on_end(self, moment: Moment) -> None:
        self.end = moment.fields
        self._end_attempt(moment.wall if self._left is None else self._left)

    def _on_renewed(self, moment: Moment) -> None:
        if len(self.renewed) < _MAX_ATTEMPTS:
            self.renewed.add((moment.attempt, int(moment.fields.get("rank", -1))))
        self._left = None

    def _on_progress(self, moment: Moment) -> None:
        self.lines.apply(moment)
        self._left = None

    def _on_checkpoint(self, moment: Moment) -> None:
        fields = moment.fields
        grade = "abnormal" if fields.get("health") == "abnormal" else moment.event
        seconds = float(fields.get("seconds") or 0.0)
        begin = max(moment.wall - seconds, self._teller.story.begin)
        text = f"{fields.get('why') or ''}"
        step = int(fields.get("step") or 0)
        self.checkpoints.add(begin, moment.wall, number=step, rank=_GRADES[grade], text=text[:300])


_HANDLERS: Mapping[str, Callable[[Walk, Moment], None]] = {
    "job_started": Walk._on_started,
    "attempt_started": Walk._on_attempt,
    "attempt_adopted": Walk._on_attempt,
    "incident": Walk._on_left,
    "rank_exited": Walk._on_left,
    "rank_restarted": Walk._on_renewed,
    "progress": Walk._on_progress,
    "checkpoint_committed": Walk._on_checkpoint,
    "checkpoint_failed": Walk._on_checkpoint,
    "checkpoint_rejected": Walk._on_checkpoint,
    "job_finished": Walk._on_end,
    "job_stopped": Walk._on_end,
    "job_failed": Walk._on_end,
}


def walked(events: Callable[[Counter[str]], Iterator[dict[str, Any]]]) -> Walk:
    """Walk along a whole journal, and return the finished walk. Raises what `events` raises.

    Args:
        events: yields all events from the first, and counts unusable lines in its argument; may be called twice.
    """
    walk = Walk(hooked=False)
    for event in events(walk.dropped):
        walk.apply(event)
        if walk.resumed:
            break
    else:
        return walk.closed()
    walk = Walk(hooked=True)
    for event in events(walk.dropped):
        walk.apply(event)
    return walk.closed()
