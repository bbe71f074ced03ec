"""Observes the ranks of the running attempt: what is observed in each state of the job, and how often.

`engine/supervisor.py` calls `Watch.poll` at the end of every turn of the event loop, in the main thread. What is seen
is reported, judged by `engine/incidents.py`, or posted as an event. `tick_seconds` is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ftlaunch.checkpoints.save_scheduler import SaveScheduler
from ftlaunch.engine.attempt import Attempt
from ftlaunch.engine.context import Context
from ftlaunch.engine.incidents import Incidents
from ftlaunch.health import hang_detection
from ftlaunch.health.hang_detection import Late
from ftlaunch.health.limit_learning import LimitLearning
from ftlaunch.health.numerics_monitor import NumericsMonitor
from ftlaunch.health.progress import Resumption
from ftlaunch.health.resume_proof import describe_proof
from ftlaunch.policy import failure_diagnosis, restart_policy
from ftlaunch.policy.states import Event, JobState
from ftlaunch.ranks.group import RankGroup
from ftlaunch.ranks.rank import SpawnFailed
from ftlaunch.ranks.view import RankView, all_attached, front, least_step, own_times
from ftlaunch.reporting.events.incidents import Unsound
from ftlaunch.reporting.events.proofs import ResumeDiffers, of_proof
from ftlaunch.reporting.events.ranks import HangSuspected, RankDyingSlowly, RankSlow, RankSlowOver, of_progress
from ftlaunch.reporting.memory_news import MemoryNews
from ftlaunch.system.loop import Clock
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import RESTORED_FROM, memory_interval

_TICK_SECONDS = 0.1
"""time between two polls of the pages"""
_FAST_TICK_SECONDS = 0.01
"""time between two polls while something is about to happen: a stop, a sweep, a resume"""
_SHARE = 0.008
"""of a core: what polling the pages of many ranks may cost; beyond this the polls are less frequent"""
_FAST_SHARE = 0.2
"""of a core: what the fast polls may cost"""
_SLOW_TICK_SECONDS = 1.0
"""longest time between two polls that is due to the shares above"""
_SLOW_SHARE = 0.015
"""of a core: what the polls may cost if `_SLOW_TICK_SECONDS` is not long enough, as with very many ranks"""
_SLOWEST_TICK_SECONDS = 15.0
_RESUMING_SHARE = 0.02
"""of a core: what the search for the first rank that has restored its state may cost"""
_HELD_UP_SECONDS = 2.0
"""time between two turns after which the loop itself was held up, so that the ages of beats count from now on"""
_SLOW_DEATH_SECONDS = 5.0
"""how long the kernel may take to end a dying rank before this is reported"""
_UNHURRIED = frozenset(
    {
        JobState.READY,
        JobState.RUNNING,
        JobState.BACKOFF,
        JobState.WRAP_UP,
        JobState.LAST_GASP,
        JobState.SALVAGE,
        JobState.KEEPING,
    }
)
"""states in which no fast polls are needed"""


def tick_seconds(cost_seconds: float, *, is_fast: bool) -> float:
    """Return the seconds between two polls of the pages.

    Args:
        cost_seconds: processor time of one poll.
        is_fast: whether something is about to happen that only a poll shows.
    """
    least, share = (_FAST_TICK_SECONDS, _FAST_SHARE) if is_fast else (_TICK_SECONDS, _SHARE)
    within_share = min(max(least, cost_seconds / share), _SLOW_TICK_SECONDS)
    if is_fast:
        return within_share
    return min(max(within_share, cost_seconds / _SLOW_SHARE), _SLOWEST_TICK_SECONDS)


class Watch:
    """Observes the ranks of the running attempt, reports news, and posts the events that follow."""

    def __init__(
        self,
        context: Context,
        incidents: Incidents,
        saving: SaveScheduler,
        numbers: NumericsMonitor,
        learning: LimitLearning,
        processor_time: Clock,
    ) -> None:
        """Make the watch of a job.

        Args:
            context: what all modules of the engine share.
            incidents: judges failures.
            saving: schedules saves.
            numbers: watches losses and replicas.
            learning: learns the hang limits.
            processor_time: returns the processor seconds that the calling thread has used.
        """
        self._context = context
        self._incidents = incidents
        self._saving = saving
        self._numbers = numbers
        self._learning = learning
        self._processor_time = processor_time
        self._memory = MemoryNews(memory_interval(str(context.spec.saving.memory_interval)).steps)
        self._called = context.clock()  # the newest call of `poll`
        self._awake_since = self._called  # the ages of beats count from this moment at the earliest
        self._polled_at = 0.0  # monotonic; when the pages were last polled
        self._cost = 0.0  # processor seconds of the newest poll
        self._resuming = False  # the cached answer of `_is_resuming`
        self._resuming_attempt = -1  # the number of the attempt that the answer is about
        self._resuming_until = 0.0  # the moment until which the answer counts
        self._is_silence_reported = False  # some rank has made no progress for half its limit
        self._slow_to_die: set[int] = set()
        self.newest_proof = ""
        """what the repeated steps have shown of the newest resume, as a sentence; "": nothing yet"""

    # --- how often --------------------------------------------------------------------------------------------

    def next_poll_at(self, state: JobState, attempt: Attempt | None) -> float:
        """Return the monotonic moment of the next poll of the pages. Ends of processes make the watch poll earlier."""
        return self._polled_at + tick_seconds(self._cost, is_fast=self._is_fast(state, attempt))

    def _is_fast(self, state: JobState, attempt: Attempt | None) -> bool:
        if state not in _UNHURRIED:
            return True
        if attempt is None:
            return False
        return (attempt.progress.resume_awaited and self._is_resuming(attempt)) or attempt.group.refilling

    def _is_resuming(self, attempt: Attempt) -> bool:
        """Return whether some rank has restored its state.

        The answer is needed in every turn of the loop and costs a read of all pages, so that it is kept for a while.
        """
        now = self._context.clock()
        if attempt.number != self._resuming_attempt or now >= self._resuming_until:
            began = self._processor_time()
            self._resuming = attempt.group.resuming
            self._resuming_attempt = attempt.number
            self._resuming_until = now + (self._processor_time() - began) / _RESUMING_SHARE
        return self._resuming

    def poll(self, state: JobState, attempt: Attempt | None) -> None:
        """Reap processes and observe what the state asks for, if a poll is due; else do nothing.

        Args:
            state: the state of the job.
            attempt: the newest attempt; None before the first.
        """
        now = self._context.clock()
        if now - self._called > _HELD_UP_SECONDS:
            self._awake_since = now
        self._called = now
        if now < self.next_poll_at(state, attempt) and not (attempt is not None and attempt.is_poll_due):
            return
        began = self._processor_time()
        observe = self._observers.get(state)
        if attempt is not None:
            attempt.is_poll_due = False
            self._reap(attempt.group)
            if observe is not None:
                observe(self, attempt, now)
        self._polled_at = self._context.clock()
        self._cost = self._processor_time() - began

    # --- running ----------------------------------------------------------------------------------------------

    def _observe_running(self, attempt: Attempt, now: float) -> None:
        try:
            attempt.refill(now)
        except SpawnFailed as failed:
            self._incidents.judge_spawn_failure(attempt, failed)
            return
        group = attempt.group
        self._context.bulkheads.call("look at what the ranks' processes do", lambda: group.notice(now), None)
        views = group.views()
        pages = group.pages()
        self._report_progress(attempt, views, now)
        proof_ends = self._judge_proof(attempt, views=views, pages=pages, now=now)
        if proof_ends or self._judge_numbers(attempt, pages) or self._judge_failures(attempt, now):
            return
        if self._saving.finding:
            self._awake_since = now  # ranks that wait for the saver's answer do not hang
        waited = hang_detection.waits(views)
        self._learning.learn(attempt=attempt.waits, waited=waited, awake_since=self._awake_since, now=now)
        if self._judge_ends(attempt):
            return
        self._saving.tick([page for _, page in pages], front(views), now)
        late = hang_detection.late_ranks(
            waited=waited, now=now, awake_since=self._awake_since, limits=self._learning.limits
        )
        if late:
            attempt.examination.suspect(hang_detection.laggard_entry(late, views), views)
            self._context.loop.post(Event.HANG)
            return
        if self._context.spec.limits.on_slow != "off" and self._judge_stragglers(attempt, views, now):
            return
        suspects = hang_detection.suspects(
            waited=waited, now=now, awake_since=self._awake_since, limits=self._learning.limits
        )
        self._report_silence(suspects, views)

    def _report_progress(self, attempt: Attempt, views: Sequence[RankView], now: float) -> None:
        """Report a finished resume, new steps, and what the ranks have agreed on about their snapshots in memory."""
        for news in attempt.progress.observe(views, now):
            self._context.report(of_progress(news, attempt.group.pages))
            if isinstance(news, Resumption) and news.kind in RESTORED_FROM:
                attempt.proof.begin(news.step)
        leader = attempt.group.ranks.get(0)
        page = None if leader is None else leader.page
        if page is not None and (event := self._memory.observe(page.memory, page.step_seconds)):
            self._context.report(event)

    def _judge_proof(
        self, attempt: Attempt, views: Sequence[RankView], pages: Sequence[tuple[int, Page]], now: float
    ) -> bool:
        """Report what the repeated steps have shown of a resume; return whether a difference ends the attempt."""
        difference = self._report_proof(attempt, views=views, pages=pages, now=now)
        if difference is None or difference.act != "stop":
            return False
        self._incidents.judge_inexact_resume(attempt, difference)
        return True

    def _report_proof(
        self, attempt: Attempt, views: Sequence[RankView], pages: Sequence[tuple[int, Page]], now: float
    ) -> ResumeDiffers | None:
        """Report what the repeated steps have shown of a resume, once this is known; return a difference, or None."""
        is_over = any(view.exited for view in views)
        proof = attempt.proof.observe(pages, now, is_over=is_over)
        if proof is None:
            return None
        deviation = proof.deviation
        name = "" if deviation is None else self._context.pages.sampled_name(deviation.rank, deviation.parameter)
        event = of_proof(proof, name, self._context.spec.numbers.on_difference)
        self._context.report(event)
        self.newest_proof = describe_proof(proof, name)
        return event if isinstance(event, ResumeDiffers) else None

    def _judge_numbers(self, attempt: Attempt, pages: Sequence[tuple[int, Page]]) -> bool:
        """Report numeric faults of losses and replicas; return whether one of the faults ends the attempt."""
        for fault in self._numbers.observe(pages):
            self._context.report(Unsound(fault))
            if fault.act != "warn":
                self._incidents.judge_numeric_fault(attempt, fault)
                return True
        return False

    def _judge_failures(self, attempt: Attempt, now: float) -> bool:
        """Judge ranks that have failed; return whether there are any.

        While a rank is dying, nothing is judged: the others may have left because of the dying rank.
        """
        dying = attempt.group.dying()
        self._report_slow_deaths(dying, now)
        return False if dying else self._incidents.judge_failed_ranks(attempt, now)

    def _judge_ends(self, attempt: Attempt) -> bool:
        """Post ALL_DONE or PAUSE if all ranks have ended without a failure; return whether they have."""
        group = attempt.group
        if group.empty and group.all_done():
            if self._is_swept(group):
                self._context.loop.post(Event.ALL_DONE)
            return True
        if group.empty and not group.refilling and self._incidents.read_failed(group) == []:
            self._context.loop.post(Event.PAUSE)  # the ranks have stopped because a head had told them and then died
            return True
        return False

    def _reap(self, group: RankGroup) -> None:
        """Take the exit status of orphans. If some have ended, reap again soon, because others are about to end."""
        context = self._context
        if context.bulkheads.call("take the exit status of orphans", lambda: group.reap(context.helpers.pids), 0):
            context.loop.call_at(context.clock() + _FAST_TICK_SECONDS, "orphans", lambda: self._reap(group))

    def _is_swept(self, group: RankGroup) -> bool:
        """Kill the processes that the ranks have left behind; return whether none is left."""
        spared = self._context.helpers.pids
        return self._context.bulkheads.call("find what the ranks have left", lambda: group.sweep(spared), False)

    def _judge_stragglers(self, attempt: Attempt, views: Sequence[RankView], now: float) -> bool:
        """Report stragglers; return whether a straggler ends the attempt (on_slow: restart)."""
        spec = self._context.spec
        for news in attempt.stragglers.observe(own_times(views), now):
            self._context.report(RankSlow(news) if news.slow else RankSlowOver(news))
            wanted = news.slow and spec.limits.on_slow == "restart"
            if wanted and restart_policy.may_restart(self._incidents.budget, spec.restarts.restart_policy):
                self._incidents.fail(attempt, failure_diagnosis.slow(news.rank, least_step(views), news.sentence))
                return True
        return False

    # --- reported once ----------------------------------------------------------------------------------------

    def _report_silence(self, suspects: Sequence[Late], views: Sequence[RankView]) -> None:
        """Report ranks over half their limit once, until all of these make progress again."""
        if suspects and not self._is_silence_reported:
            self._context.report(HangSuspected(hang_detection.laggard_entry(suspects, views)))
        self._is_silence_reported = bool(suspects)

    def _report_slow_deaths(self, dying: Mapping[int, float], now: float) -> None:
        """Report once each rank that the kernel takes long to end.

        Args:
            dying: number of the rank -> monotonic moment at which its end began.
            now: monotonic seconds.
        """
        slow = {rank: now - since for rank, since in dying.items() if now - since > _SLOW_DEATH_SECONDS}
        for rank in slow.keys() - self._slow_to_die:
            self._context.report(RankDyingSlowly(rank, slow[rank]))
        self._slow_to_die = set(slow)

    # --- other states -----------------------------------------------------------------------------------------

    def _observe_examining(self, attempt: Attempt, now: float) -> None:
        if self._judge_end_meanwhile(attempt):
            return
        cause = attempt.examination.find_cause(attempt.can_replace)
        if cause is not None:
            self._incidents.judge_hang(attempt, cause)

    def _judge_end_meanwhile(self, attempt: Attempt) -> bool:
        """Post ALL_DONE if all ranks have ended well while a hang was examined; return whether they have."""
        group = attempt.group
        if not (group.empty and group.all_done()):
            return False
        attempt.examination.end()
        if self._is_swept(group):
            self._context.loop.post(Event.ALL_DONE)
        return True

    def _observe_pausing(self, attempt: Attempt, now: float) -> None:
        if attempt.broken_off or not self._judge_failures(attempt, now):
            self._observe_stopping(attempt, now)

    def _observe_stopping(self, attempt: Attempt, now: float) -> None:
        group = attempt.group
        views = group.views()
        pages = group.pages()
        self._report_progress(attempt, views, now)
        self._report_proof(attempt, views=views, pages=pages, now=now)
        if not group.empty:  # a step that all ranks hold already is saved before the ranks have ended
            self._saving.tick([page for _, page in pages], front(views), now)
        elif self._is_swept(group):
            done = group.all_done() and all_attached(views)
            self._context.loop.post(Event.ALL_DONE if done else Event.ALL_GONE)

    def _observe_clearing(self, attempt: Attempt, now: float) -> None:
        loop = self._context.loop
        group = attempt.group
        if group.empty and self._is_swept(group):
            loop.cancel(Event.GRACE_OVER)
            attempt.grace_cut.end()
            loop.post(Event.ALL_GONE)
        elif attempt.grace_cut.poll(now):
            loop.post(Event.GRACE_OVER)  # no rank can use the rest of the grace

    _observers: Mapping[JobState, Callable[[Watch, Attempt, float], None]] = {
        JobState.RUNNING: _observe_running,
        JobState.EXAMINING: _observe_examining,
        JobState.PAUSING: _observe_pausing,
        JobState.STOPPING: _observe_stopping,
        JobState.CLEARING: _observe_clearing,
        JobState.ABANDONING: _observe_clearing,
        JobState.LEAVING: _observe_clearing,
    }
