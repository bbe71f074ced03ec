"""Adds up a journal: counters, sums and the newest facts, over all runs in a run dir. Pure.

The journal outlives the exporter, the supervisor and the machine of the head, so the counters continue after the death
of any of these.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftlaunch.history import goodput
from ftlaunch.history.events import is_number
from ftlaunch.history.goodput_shares import Goodput, goodput_of
from ftlaunch.history.story import CLASSES
from ftlaunch.history.timeline import Moment, moments

# Bounds of histograms, in seconds.
RESTART_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
SAVE_BOUNDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
OTHER = "other"
SAVE_REASONS = ("interval", "stop", "incident", "request", "end", OTHER)
"""reasons for which checkpoints are committed"""
FAULTS = ("nan", "spike", "divergence", OTHER)
"""kinds of faults in numbers"""
PROOF_RESULTS = ("same", "rounded", "different", "unverified")
"""what repeated steps have shown about a resume: equal, equal up to rounding, different, or not compared"""
_ENDS = {"job_finished": "done", "job_stopped": "stopped", "job_failed": "failed"}
Line = Mapping[str, Any]


class Distribution:
    """A histogram: the number of values in each bucket, and the sum of all values.

    A bucket holds the values above the bound before and up to its own bound; the last bucket has no upper bound.

    Attributes:
        sum: the sum of all values, in their unit.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """Begin without values. bounds: the upper bounds of all buckets but the last, ascending."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # by bucket
        self.sum = 0.0

    def add(self, value: float | None) -> None:
        """Count a value. None, an unknown value, is not counted."""
        if value is not None:
            self._counts[bisect_left(self._bounds, value)] += 1
            self.sum += value

    def buckets(self) -> list[tuple[str, int]]:
        """Return the upper bound of each bucket as text, and the number of all values up to that bound."""
        total = 0
        found = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), total))
        return found


class Tally:
    """The sums of one journal, built line by line.

    A run is the life of one supervisor; an attempt is one start of the ranks. Times are seconds since the epoch, 0 if
    unknown. A field of a line that holds no number where its name means one is skipped.

    Attributes:
        kinds: the kinds of incidents that are counted by name, and OTHER.
        start: the newest `job_started`; None before the first.
        started_at: time of the newest start.
        ended_at: time of the newest end of a run.
        committed_at: time of the newest committed checkpoint.
        progressed_at: time of the newest step of this run of the supervisor, or of the head that it replaced.
        attempt: number of the newest attempt.
        state: final state of a job that has ended (done, stopped or failed); empty while the job runs.
        runs: number of starts of the supervisor.
        attempts: number of started attempts.
        steps_lost: steps that had to be made again after resumes.
        hangs_suspected: number of reported suspicions of a hang.
        failed_calls: number of failed calls that the job can do without.
        incidents: number of incidents, by kind.
        restarts: number of incidents after which the job restarted, by kind.
        faults: number of faults in numbers, by kind (FAULTS).
        proofs: number of resumes, by what their repeated steps have shown (PROOF_RESULTS).
        notices: number of notices to people, by "delivered" or "failed".
        restarts_left: restarts left, by "failure" and "hang"; empty before the first start.
        to_resumed: seconds from an incident to the resume.
        to_first_step: seconds from an incident to the first step after it.
        slow: ranks that are stragglers now.
        commits: number of committed checkpoints, by reason (SAVE_REASONS).
        save_seconds: seconds that committed checkpoints took.
        saved_bytes: size of all committed checkpoints, in bytes.
        save_failures: number of checkpoints that could not be written.
        rejected: number of checkpoints that a resume has refused.
        saver_deaths: number of savers that died.
        committed: step of the newest committed checkpoint; -1 without one.
        saver_up: whether a saver runs.
        storage_answers: whether storage answers.
        story_lines: the lines that goodput is computed from.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        """Begin before the first line. kinds: kinds that incidents may have; all others count as `other`."""
        self.kinds = (*kinds, OTHER)
        self.start: Line | None = None
        self.started_at = self.ended_at = self.committed_at = 0.0
        self.progressed_at = 0.0
        self._progressed_before = 0.0  # `progressed_at` of the run before
        self.attempt = 0
        self.state = ""
        self.runs = self.attempts = self.steps_lost = self.hangs_suspected = self.failed_calls = 0
        self._failed_by_purpose: dict[str, int] = {}  # failed calls of this run of the supervisor, by purpose
        self.incidents: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.proofs: Counter[str] = Counter()
        self.notices: Counter[str] = Counter()
        self.restarts_left: dict[str, int] = {}
        self.to_resumed = Distribution(RESTART_BOUNDS)
        self.to_first_step = Distribution(RESTART_BOUNDS)
        self.slow: set[int] = set()
        self.commits: Counter[str] = Counter()
        self.save_seconds = Distribution(SAVE_BOUNDS)
        self.saved_bytes = self.save_failures = self.rejected = self.saver_deaths = 0
        self.committed = -1
        self.saver_up = self.storage_answers = True
        self.story_lines: list[Line] = []
        self._moments: list[Moment] | None = None  # cache: the moments of `story_lines`

    @property
    def jobset_restart(self) -> int | None:
        """How often JobSet has restarted the job; None if JobSet did not start the job, or if the number is unknown."""
        restarts = None if self.start is None else _number(self.start, "jobset_restart")
        return None if restarts is None else int(restarts)

    def apply(self, line: Line) -> None:
        """Process the next line of the journal; a line that is no event is skipped."""
        name = line.get("event")
        if not isinstance(name, str) or not isinstance(line.get("t"), str):
            return
        if name in goodput.TIMED_EVENTS and name != "checkpoint_committed":
            self._keep(name, line)
        handler = self._handlers.get(name)
        if handler is not None:
            handler(self, line)

    def _keep(self, name: str, line: Line) -> None:
        """Keep a line that goodput needs.

        To bound memory, only the last of consecutive `progress` lines stays, and only this attempt's `rank_exited`.
        """
        self._moments = None
        if name == "attempt_started":
            self.story_lines = [old for old in self.story_lines if old["event"] != "rank_exited"]
        if name == "progress" and self.story_lines and self.story_lines[-1]["event"] == "progress":
            self.story_lines.pop()
        self.story_lines.append(line)

    def seconds(self, now: float) -> Mapping[str, float]:
        """Return the seconds of wall time by class, until `now` (seconds since the epoch) or the job's end."""
        return self.goodput(now).seconds

    def goodput(self, now: float, mono: float | None = None) -> Goodput:
        """Return what the wall time was spent on, until now or the job's end.

        Args:
            now: seconds since the epoch; used only if `mono` cannot be used.
            mono: monotonic seconds of the machine whose supervisor writes the journal, or None. With `mono` the result
                does not depend on a wall clock that is set while the job runs.
        """
        if self._moments is None:
            self._moments = moments(self.story_lines)
        if not self._moments:
            return Goodput(dict.fromkeys(CLASSES, 0.0), {})
        newest = self._moments[-1]
        since_newest = now - newest.wall if mono is None else mono - float(newest.fields["mono"])
        if mono is not None and since_newest < 0:  # the machine was rebooted since
            since_newest = now - newest.wall
        if self.state:
            return goodput_of(self._moments)
        until = Moment(newest.wall + max(since_newest, 0.0), "now", attempt=self.attempt, fields={})
        return goodput_of([*self._moments, until])

    def _count(self, counter: Counter[str], kind: object) -> None:
        counter[str(kind) if kind in self.kinds else OTHER] += 1

    # --- what lines say ---------------------------------------------------------------------------------------

    def _on_job_started(self, line: Line) -> None:
        self.start = line
        self.state = ""
        self._failed_by_purpose = {}
        self.runs += 1
        self.started_at = _wall(line)
        self._progressed_before = self.progressed_at
        self.progressed_at = 0.0
        self.restarts_left = {"failure": _whole(line, "max_restarts"), "hang": _whole(line, "max_hang_restarts")}
        self.saver_up = self.storage_answers = True
        self.slow = set()

    def _on_attempt(self, line: Line) -> None:
        self.attempt = _whole(line, "attempt")
        self.attempts += 1
        self.slow = set()

    def _on_adopted(self, line: Line) -> None:
        self.attempt = _whole(line, "attempt")
        self.progressed_at = max(self.progressed_at, self._progressed_before)  # the ranks went on running

    def _on_progress(self, line: Line) -> None:
        self.progressed_at = max(self.progressed_at, _wall(line))

    def _on_incident(self, line: Line) -> None:
        self._count(self.incidents, line.get("kind"))
        if line.get("verdict") == "restart":
            self._count(self.restarts, line.get("kind"))
        self.restarts_left = {
            "failure": _whole(line, "restarts_left"),
            "hang": _whole(line, "hang_restarts_left"),
        }

    def _on_resumed(self, line: Line) -> None:
        self.steps_lost += _whole(line, "steps_lost")
        self.to_resumed.add(_number(line, "seconds"))

    def _on_recovered(self, line: Line) -> None:
        self.to_first_step.add(_number(line, "seconds"))
        self._on_progress(line)

    def _on_verified(self, line: Line) -> None:
        self.proofs["rounded" if line.get("answer") == "rounded" else "same"] += 1

    def _on_unverified(self, line: Line) -> None:
        self.proofs["unverified"] += 1

    def _on_differs(self, line: Line) -> None:
        self.proofs["different"] += 1

    def _on_hang_suspected(self, line: Line) -> None:
        self.hangs_suspected += 1

    def _on_call_failed(self, line: Line) -> None:
        """Add the increase since the last line of this purpose. A line has the count of the run; counts may skip."""
        purpose = str(line.get("what"))
        count = _whole(line, "count", 1)
        self.failed_calls += max(count - self._failed_by_purpose.get(purpose, 0), 0)
        self._failed_by_purpose[purpose] = count

    def _on_unsound(self, line: Line) -> None:
        kind = str(line.get("kind"))
        self.faults[kind if kind in FAULTS else OTHER] += 1

    def _on_slow(self, line: Line) -> None:
        self.slow.add(_whole(line, "rank", -1))

    def _on_slow_over(self, line: Line) -> None:
        self.slow.discard(_whole(line, "rank", -1))

    def _on_committed(self, line: Line) -> None:
        why = str(line.get("why"))
        self.commits[why if why in SAVE_REASONS else OTHER] += 1
        self.saved_bytes += _whole(line, "bytes")
        self.save_seconds.add(_number(line, "seconds"))
        self.committed = _whole(line, "step", -1)
        self.committed_at = _wall(line)

    def _on_save_failed(self, line: Line) -> None:
        self.save_failures += 1

    def _on_rejected(self, line: Line) -> None:
        self.rejected += 1

    def _on_saver_died(self, line: Line) -> None:
        self.saver_deaths += 1
        self.saver_up = True  # the event is written once another saver was started

    def _on_saver_missing(self, line: Line) -> None:
        self.saver_up = False

    def _on_storage_silent(self, line: Line) -> None:
        self.storage_answers = False

    def _on_storage_answers(self, line: Line) -> None:
        self.storage_answers = True

    def _on_notified(self, line: Line) -> None:
        self.notices["delivered" if line["event"] == "notified" else "failed"] += 1

    def _on_end(self, line: Line) -> None:
        self.state = _ENDS[line["event"]]
        self.ended_at = _wall(line)

    _handlers: Mapping[str, Callable[[Tally, Line], None]] = {
        "job_started": _on_job_started,
        "attempt_started": _on_attempt,
        "attempt_adopted": _on_adopted,
        "incident": _on_incident,
        "resumed": _on_resumed,
        "resume_verified": _on_verified,
        "resume_unverified": _on_unverified,
        "resume_differs": _on_differs,
        "recovered": _on_recovered,
        "progress": _on_progress,
        "hang_suspected": _on_hang_suspected,
        "call_failed": _on_call_failed,
        "unsound": _on_unsound,
        "rank_slow": _on_slow,
        "rank_slow_over": _on_slow_over,
        "checkpoint_committed": _on_committed,
        "checkpoint_failed": _on_save_failed,
        "checkpoint_rejected": _on_rejected,
        "saver_died": _on_saver_died,
        "saver_missing": _on_saver_missing,
        "storage_silent": _on_storage_silent,
        "storage_answers": _on_storage_answers,
        "notified": _on_notified,
        "notify_failed": _on_notified,
        "job_finished": _on_end,
        "job_stopped": _on_end,
        "job_failed": _on_end,
    }


def _number(line: Line, name: str) -> float | None:
    """Return a number of a line; None if the field is missing or holds no finite number."""
    value = line.get(name)
    return value if is_number(value) else None


def _whole(line: Line, name: str, otherwise: int = 0) -> int:
    """Return a whole number of a line; `otherwise` if the field is missing or holds none."""
    value = line.get(name)
    return value if isinstance(value, int) else otherwise


def _wall(line: Line) -> float:
    """Return the time of a line in seconds since the epoch; 0 if the line has none."""
    found = moments([line])
    return found[0].wall if found else 0.0
