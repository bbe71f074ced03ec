"""Turns the events of a run dir into a story: what happened, and where the wall time went. Pure.

Every second between the first event and the last falls into exactly one class, so that the ledger adds up. A run dir
may hold several runs of the supervisor. A run without an end was killed. All times are seconds on the line of moments
that `timeline` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from ftlaunch.history.story import (
    DETECTING,
    DOWN,
    LOST,
    RESTARTING,
    STARTING,
    STOPPING,
    UNKNOWN,
    USEFUL,
    HistoryEntry,
    Incident,
    Story,
)
from ftlaunch.history.timeline import Moment

Spent = Callable[[str, float, float], None]
"""a callback that takes a span of time: its class, its begin and its end"""
# Events that are written after the last event of a run; their time is not the job's.
_AFTER_THE_END = ("notified", "notify_failed")
# Events that become entries of the story, and change nothing else.
_NOTED = frozenset(
    {
        "checkpoint_failed",
        "checkpoint_rejected",
        "drain_requested",
        "files_silent",
        "loaded",
        "save_requested",
        "saver_died",
        "saver_missing",
        "storage_silent",
    }
)


def build_story(moments: Sequence[Moment]) -> Story:
    """Return the story of a whole journal.

    Args:
        moments: all events of the run dir, in order.
    """
    teller = Teller(hooked=any(moment.event == "resumed" for moment in moments))
    for moment in moments:
        teller.apply(moment)
    return teller.close()


def _ignore_span(name: str, begin: float, end: float) -> None:
    """Do nothing with a span of time."""


class Teller:
    """Builds the story event by event. At any time, the teller knows into which class the current time falls."""

    def __init__(self, hooked: bool, spent: Spent = _ignore_span) -> None:
        """Start with an empty story.

        Args:
            hooked: whether the ranks report their steps, so that training can be told from starting.
            spent: called with every span of time once its class is known.
        """
        self._hooked = hooked
        self._spent = spent
        self.story = Story()
        """the story so far; callers may remove `entries` at any time"""
        self._class = DOWN  # class of the time since `_since`
        self._since = 0.0
        self._last = 0.0  # time of the newest event
        self._unrecovered: Incident | None = None  # newest incident, until the job has recovered
        self._started: HistoryEntry | None = None  # newest start
        self._resumed: HistoryEntry | Incident | None = None  # start or incident before the last resume
        self._mark: tuple[float, int] | None = None  # a time, and the step that training had reached by then
        self._reached: int | None = None  # newest known step of this attempt, or of the one before
        self._exits: dict[int, int] = {}  # by rank: its last step in this attempt
        self._last_exit: float | None = None  # time of the last end of a rank in this attempt
        self._timed = 0.0  # seconds of the steps that `steps_made` counts

    def apply(self, moment: Moment) -> None:
        """Update the state by one event. Call with the moments in their order."""
        story = self.story
        if story.ended and moment.event in _AFTER_THE_END:
            return
        if not story.runs and moment.event != "job_started":  # the line of the start is lost
            self._on_job_started(Moment(wall=moment.wall, event="job_started", attempt=0, fields={}))
        handler = self._handlers.get(moment.event, Teller._note_some)
        handler(self, moment)
        self._last = moment.wall

    @property
    def mean_step(self) -> float | None:
        """Mean seconds of the timed steps; None if no step was timed."""
        return self._timed / self.story.steps_made if self.story.steps_made else None

    def close(self) -> Story:
        """Return the whole story. Call after the last event."""
        story = self.story
        self._turn(self._last, DOWN)
        story.end = max(self._last, story.begin)
        story.step_seconds = self.mean_step
        if story.step_seconds is not None:
            lost = min(story.steps_lost * story.step_seconds, story.seconds[USEFUL])
            story.seconds[LOST] = lost
            story.seconds[USEFUL] -= lost
        return story

    def copied(self, spent: Spent = _ignore_span) -> Teller:
        """Return a copy without entries, which can be closed while this teller takes in more events.

        Args:
            spent: called with the spans of the copy.
        """
        other = copy(self)
        other._spent = spent
        other._exits = dict(self._exits)
        other.story = replace(self.story, entries=[], seconds=dict(self.story.seconds))
        return other

    # --- time -----------------------------------------------------------------------------------------

    def _turn(self, at: float, into: str) -> None:
        """Begin another class of time.

        Args:
            at: when the class begins; not before the present one began.
            into: the class.
        """
        at = max(at, self._since)
        if at > self._since:
            self.story.seconds[self._class] += at - self._since
            self._spent(self._class, self._since, at)
        self._class = into
        self._since = at

    def _reach(self, at: float, step: int) -> None:
        """Record that training has completed `step` by the time `at`."""
        if self._mark is not None and step > self._mark[1] and at > self._mark[0]:
            self._timed += at - self._mark[0]
            self.story.steps_made += step - self._mark[1]
        self._mark = (at, step)
        self._reached = step

    def _note(self, moment: Moment, what: str = "", **more: Any) -> HistoryEntry:
        """Append an entry to the story, called `what` or as the event, with the event's fields and more."""
        entry = HistoryEntry(
            at=moment.wall,
            what=what or moment.event,
            attempt=moment.attempt,
            fields={**moment.fields, **more},
        )
        self.story.entries.append(entry)
        return entry

    # --- runs -----------------------------------------------------------------------------------------

    def _on_job_started(self, moment: Moment) -> None:
        story = self.story
        fields = moment.fields
        down = 0.0
        if not story.runs:
            story.begin = moment.wall
            self._since = moment.wall
        else:
            if not story.ended:
                self._on_killed(moment)
            down = moment.wall - self._since
        self._turn(moment.wall, STARTING)
        story.runs += 1
        story.ended = False
        story.job_id = str(fields.get("job_id", story.job_id))
        story.ranks = int(fields.get("ranks", story.ranks))
        self._mark = None
        self._unrecovered = None
        self._started = self._note(moment, "started", down=down)

    def _on_killed(self, moment: Moment) -> None:
        """Handle a new run while the one before has no end, which was therefore killed.

        The ranks' pages may have told the new run when its predecessor was killed; `moment` is the start of the new
        run.
        """
        killed_at = moment.fields.get("killed_at")
        at = self._last
        if isinstance(killed_at, Mapping):
            at = min(max(moment.wall - killed_at.get("ago", 0.0), self._last), moment.wall)
            if self._class == USEFUL:
                self._reach(at, killed_at.get("step", 0))
            self._reached = killed_at.get("step", 0)
        entry = HistoryEntry(at=at, what="killed", attempt=moment.attempt, fields={"known": killed_at is not None})
        self.story.entries.append(entry)
        self._turn(at, DOWN)

    def _on_head_replaced(self, moment: Moment) -> None:
        """Handle another head that has taken over the ranks. They have trained all the while, so no time is lost."""
        self.story.heads_replaced += 1
        self._note(moment, "head_replaced")

    def _on_attempt_adopted(self, moment: Moment) -> None:
        """Handle ranks that a new head has taken over. They have their state, even if the old head did not say so."""
        self._unrecovered = None
        if self._class in (STARTING, RESTARTING):
            self._turn(moment.wall, USEFUL)

    def _on_attempt_started(self, moment: Moment) -> None:
        self.story.attempts += 1
        self._exits = {}
        self._last_exit = None
        if not self._hooked:
            self._turn(moment.wall, UNKNOWN)
        elif self._class == STOPPING:  # the ranks were stopped in order to go on with other nodes
            self._turn(moment.wall, RESTARTING)

    def _on_resumed(self, moment: Moment) -> None:
        step = moment.fields.get("step", 0)
        source = moment.fields.get("source")
        source = None if source is None else str(source)
        lost = moment.fields.get("steps_lost")
        if lost is None and self._reached is not None:
            lost = max(self._reached - step, 0)
        self.story.steps_lost += lost or 0
        self._reached = step
        if (incident := self._unrecovered) is not None:
            incident.resumed_step = step
            incident.source = source
            incident.steps_lost = lost
            incident.resumed_after = moment.wall - incident.at
            self._resumed = incident
        elif self._class == STARTING and self._started is not None:
            self._started.fields |= {"resumed": step, "source": source, "steps_lost": lost}
            self._resumed = self._started
        if self._unrecovered is None and self._class in (STARTING, RESTARTING):
            self._turn(moment.wall, USEFUL)
            self._mark = (moment.wall, step)

    def _on_proof(self, moment: Moment) -> None:
        """Handle repeated steps that were equal to the first ones, or that could not be compared."""
        self._note_proof(str(moment.fields.get("sentence") or ""))

    def _on_differs(self, moment: Moment) -> None:
        """Handle a repeated step that differed from the first one."""
        self._note(moment)
        self._note_proof(f"the resumed run differs from step {moment.fields.get('step')} on")

    def _note_proof(self, sentence: str) -> None:
        """Add what repeated steps have shown of the last resume to the incident, or the start, before that resume."""
        if isinstance(self._resumed, Incident):
            self._resumed.proof = sentence
        elif self._resumed is not None:
            self._resumed.fields["proof"] = sentence
        self._resumed = None

    def _on_recovered(self, moment: Moment) -> None:
        if (incident := self._unrecovered) is not None:
            incident.recovered_after = moment.wall - incident.at
        self._unrecovered = None
        if self._class == RESTARTING:
            self._turn(moment.wall, USEFUL)
        self._reach(moment.wall, moment.fields.get("step", 0))

    def _on_progress(self, moment: Moment) -> None:
        if self._class == USEFUL:
            self._reach(moment.wall, moment.fields.get("step", 0))

    # --- failures -------------------------------------------------------------------------------------

    def _on_incident(self, moment: Moment) -> None:
        fields = moment.fields
        incident = Incident(
            at=moment.wall,
            attempt=moment.attempt,
            rank=fields.get("rank", -1),
            kind=str(fields.get("kind", "")),
            sentence=str(fields.get("sentence") or fields.get("cause", "")),
            verdict=str(fields.get("verdict", "")),
            autopsy=None if fields.get("autopsy") is None else str(fields["autopsy"]),
        )
        if self._class == USEFUL:
            progress = max(moment.wall - fields.get("since_progress", 0.0), self._since)
            incident.seen_after = moment.wall - progress
            self._reach(progress, fields.get("step", 0))
            self._turn(progress, DETECTING)
        self._mark = None
        if self._class != STOPPING:
            self._turn(moment.wall, RESTARTING if incident.verdict == "restart" else STOPPING)
        self._unrecovered = incident
        self.story.entries.append(incident)

    def _on_rank_exited(self, moment: Moment) -> None:
        self._exits[moment.fields.get("rank", 0)] = moment.fields.get("step", -1)
        self._last_exit = moment.wall

    # --- stopping, saving, the end --------------------------------------------------------------------

    def _on_stop_requested(self, moment: Moment) -> None:
        self._note(moment)
        self._turn(moment.wall, STOPPING)

    def _on_stop_announced(self, moment: Moment) -> None:
        if self._mark is not None:
            self._reach(moment.wall, moment.fields.get("front", self._mark[1]))
            self._mark = None
        self._turn(moment.wall, STOPPING)

    def _on_checkpoint_committed(self, moment: Moment) -> None:
        self.story.checkpoints += 1
        if moment.fields.get("why") != "interval":
            self._note(moment)

    def _on_end(self, moment: Moment) -> None:
        """Handle the end of a run of the supervisor. The time after the last rank's end went into saving."""
        steps = self._exits.values()
        if self._class in (USEFUL, UNKNOWN) and self._last_exit is not None:
            if self._mark is not None and min(steps) >= 0:
                self._reach(self._last_exit, min(steps))
            self._turn(self._last_exit, STOPPING)
        if moment.event == "job_finished":
            self._reached = None  # the next run in this run dir is another job
        elif min(steps, default=-1) >= 0:
            self._reached = min(steps)
        self.story.ended = True
        self._note(moment)
        self._turn(moment.wall, DOWN)

    def _note_some(self, moment: Moment) -> None:
        """Append an entry for an event that changes no time, if the event is worth one."""
        if moment.event in _NOTED:
            self._note(moment)

    _handlers: Mapping[str, Callable[[Teller, Moment], None]] = {
        "job_started": _on_job_started,
        "head_replaced": _on_head_replaced,
        "attempt_adopted": _on_attempt_adopted,
        "attempt_started": _on_attempt_started,
        "resumed": _on_resumed,
        "resume_verified": _on_proof,
        "resume_unverified": _on_proof,
        "resume_differs": _on_differs,
        "recovered": _on_recovered,
        "progress": _on_progress,
        "incident": _on_incident,
        "rank_exited": _on_rank_exited,
        "stop_requested": _on_stop_requested,
        "stop_announced": _on_stop_announced,
        "checkpoint_committed": _on_checkpoint_committed,
        "job_finished": _on_end,
        "job_stopped": _on_end,
        "job_failed": _on_end,
    }


TIMED_EVENTS = frozenset(Teller._handlers)
"""names of the events that determine the times of a story"""
