"""What is looked at in each state of the job, and how often. One method a state."""

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

_TICK = 0.1  # seconds between looks at the pages
_FAST_TICK = 0.01  # while something is about to happen: a stop, a sweep, a resume
# of a core, what looking at the pages of many ranks may take: it is done less often then
_SHARE, _FAST_SHARE = 0.008, 0.2
_SLOW_TICK = 1.0  # up to which that holds; of very many ranks a look takes more than that
_SLOW_SHARE = 0.015
_SLOWEST_TICK = 15.0
_RESUMING_SHARE = 0.02  # of a core, what looking for the first rank that resumes may take
_HELD_UP = 2.0  # a loop that comes so late was itself held up: ages count anew
_SLOW_DEATH = 5.0  # seconds that the kernel may take over a dead rank until that is told
_UNHURRIED = frozenset(
    {JobState.READY, JobState.RUNNING, JobState.BACKOFF, JobState.WRAP_UP, JobState.LAST_GASP, JobState.SALVAGE}
    | {JobState.KEEPING}
)


def tick_seconds(cost_seconds: float, *, is_fast: bool) -> float:
    """Return the seconds between two looks at the pages.

    Args:
        cost_seconds: of a processor, that a look takes.
        is_fast: something is about to happen that shows only by looking.
    """
    least, share = (_FAST_TICK, _FAST_SHARE) if is_fast else (_TICK, _SHARE)
    within_share = min(max(least, cost_seconds / share), _SLOW_TICK)
    if is_fast:
        return within_share
    return min(max(within_share, cost_seconds / _SLOW_SHARE), _SLOWEST_TICK)


class Watch:
    """Looks at the ranks of the running attempt, and posts what it sees."""

    def __init__(
        self,
        context: Context,
        incidents: Incidents,
        saving: SaveScheduler,
        numbers: NumericsMonitor,
        learning: LimitLearning,
        processor_time: Clock,
    ) -> None:
        """processor_time: seconds of processor that the calling thread has had."""
        self._context, self._incidents, self._saving = context, incidents, saving
        self._numbers, self._learning = numbers, learning
        self._processor_time = processor_time
        self._memory = MemoryNews(memory_interval(str(context.spec.saving.memory_interval)).steps)
        self._awake_since = self._called = context.clock()
        self._looked, self._cost = 0.0, 0.0  # when the pages were looked at, and what that took of a processor
        self._resuming, self._resuming_of = False, -1  # whether ranks resume, and the attempt that it was asked of
        self._resuming_until = 0.0  # until when that answer counts
        self._silent = False  # some rank has made no progress for half its limit, and that was told
        self._slow_to_die: set[int] = set()
        self.newest_proof = ""
        """what the steps made again have shown of the newest resume, in a sentence; empty: nothing yet"""

    # --- how often --------------------------------------------------------------------------------------------

    def next_look(self, state: JobState, attempt: Attempt | None) -> float:
        """When to look at the pages again, if nothing happens before: what happens is heard at once."""
        return self._looked + tick_seconds(self._cost, is_fast=self._is_fast(state, attempt))

    def _is_fast(self, state: JobState, attempt: Attempt | None) -> bool:
        if state not in _UNHURRIED:
            return True
        if attempt is None:
            return False
        return (attempt.progress.resume_awaited and self._is_resuming(attempt)) or attempt.group.refilling

    def _is_resuming(self, attempt: Attempt) -> bool:
        """Whether some rank has restored its state. It is asked in every turn of the loop, and looks at all ranks."""
        now = self._context.clock()
        if attempt.number != self._resuming_of or now >= self._resuming_until:
            began = self._processor_time()
            self._resuming, self._resuming_of = attempt.group.resuming, attempt.number
            self._resuming_until = now + (self._processor_time() - began) / _RESUMING_SHARE
        return self._resuming

    def look(self, state: JobState, attempt: Attempt | None) -> None:
        """Look at what the state asks for, where it is time to."""
        now = self._context.clock()
        if now - self._called > _HELD_UP:
            self._awake_since = now
        self._called = now
        if now < self.next_look(state, attempt) and not (attempt is not None and attempt.must_look):
            return
        began, look = self._processor_time(), self._looks.get(state)
        if attempt is not None:
            attempt.must_look = False
            self._reap(attempt.group)
            if look is not None:
                look(self, attempt, now)
        self._looked = self._context.clock()
        self._cost = self._processor_time() - began  # what others had of the processor meanwhile does not count

    # --- running ----------------------------------------------------------------------------------------------

    def _running(self, attempt: Attempt, now: float) -> None:
        try:
            attempt.refill(now)
        except SpawnFailed as failed:
            self._incidents.spawn_failed(attempt, failed)
            return
        group = attempt.group
        self._context.bulkheads.call("look at what the ranks' processes do", lambda: group.notice(now), None)
        views, pages = group.views(), group.pages()
        self._tell_progress(attempt, views, now)
        proof_ends = self._judge_proof(attempt, views, pages, now)
        if proof_ends or self._judge_numbers(attempt, pages) or self._judge_failures(attempt, now):
            return
        if self._saving.finding:
            self._awake_since = now  # ranks wait for the saver's answer: that is no hang of theirs
        waited = hang_detection.waits(views)
        self._learning.look(attempt.waits, waited, self._awake_since, now)
        if self._judge_ends(attempt):
            return
        self._saving.tick([page for _, page in pages], front(views), now)
        late = hang_detection.late_ranks(waited, now, self._awake_since, self._learning.limits)
        if late:
            attempt.examination.suspect(hang_detection.of_laggard(late, views), views)
            self._context.loop.post(Event.HANG)
            return
        if self._context.spec.limits.on_slow != "off" and self._judge_stragglers(attempt, views, now):
            return
        suspects = hang_detection.suspects(waited, now, self._awake_since, self._learning.limits)
        self._tell_silence(suspects, views)

    def _tell_progress(self, attempt: Attempt, views: Sequence[RankView], now: float) -> None:
        """A finished resume, new steps, and what the ranks have agreed on about memory."""
        for news in attempt.progress.look(views, now):
            self._context.tell(of_progress(news, attempt.group.pages))
            if isinstance(news, Resumption) and news.kind in RESTORED_FROM:
                attempt.proof.begin(news.step)
        leader = attempt.group.ranks.get(0)
        page = None if leader is None else leader.page
        if page is not None and (told := self._memory.look(page.memory, page.step_seconds)):
            self._context.tell(told)

    def _judge_proof(
        self, attempt: Attempt, views: Sequence[RankView], pages: Sequence[tuple[int, Page]], now: float
    ) -> bool:
        """Tell what the steps made again have shown; return whether a difference ends the attempt."""
        found = self._tell_proof(attempt, views, pages, now)
        if found is None or found.act != "stop":
            return False
        self._incidents.resume_differs(attempt, found)
        return True

    def _tell_proof(
        self, attempt: Attempt, views: Sequence[RankView], pages: Sequence[tuple[int, Page]], now: float
    ) -> ResumeDiffers | None:
        """Tell what the steps made again have shown, once that is known; return a difference."""
        is_over = any(view.exited for view in views)
        proof = attempt.proof.look(pages, now, is_over=is_over)
        if proof is None:
            return None
        deviation = proof.deviation
        name = "" if deviation is None else self._context.pages.sampled_name(deviation.rank, deviation.parameter)
        event = of_proof(proof, name, self._context.spec.numbers.on_difference)
        self._context.tell(event)
        self.newest_proof = describe_proof(proof, name)
        return event if isinstance(event, ResumeDiffers) else None

    def _judge_numbers(self, attempt: Attempt, pages: Sequence[tuple[int, Page]]) -> bool:
        """Whether what the ranks report of their losses and replicas ends the attempt."""
        for fault in self._numbers.look(pages):
            self._context.tell(Unsound(fault))
            if fault.act != "warn":
                self._incidents.numbers_wrong(attempt, fault)
                return True
        return False

    def _judge_failures(self, attempt: Attempt, now: float) -> bool:
        """Whether a rank has failed; one that is about to end is waited for, others may have left because of it."""
        dying = attempt.group.dying()
        self._tell_slow_deaths(dying, now)
        return False if dying else self._incidents.ranks_failed(attempt, now)

    def _judge_ends(self, attempt: Attempt) -> bool:
        """Whether all ranks have ended well."""
        group = attempt.group
        if group.empty and group.all_done():
            if self._is_swept(group):
                self._context.loop.post(Event.ALL_DONE)
            return True
        if group.empty and not group.refilling and self._incidents.read_failed(group) == []:
            self._context.loop.post(Event.PAUSE)  # all have stopped in good order: a head that has died had told them
            return True
        return False

    def _reap(self, group: RankGroup) -> None:
        """Take the exit status of orphans; where some have just ended, others are about to."""
        context = self._context
        if context.bulkheads.call("take the exit status of orphans", lambda: group.reap(context.helpers.pids), 0):
            context.loop.call_at(context.clock() + _FAST_TICK, "orphans", lambda: self._reap(group))

    def _is_swept(self, group: RankGroup) -> bool:
        """Kill what the ranks have left; return whether nothing of it is left."""
        spared = self._context.helpers.pids
        return self._context.bulkheads.call("find what the ranks have left", lambda: group.sweep(spared), False)

    def _judge_stragglers(self, attempt: Attempt, views: Sequence[RankView], now: float) -> bool:
        """Whether a rank that the others wait for ends the attempt."""
        spec = self._context.spec
        for news in attempt.stragglers.look(own_times(views), now):
            self._context.tell(RankSlow(news) if news.slow else RankSlowOver(news))
            wanted = news.slow and spec.limits.on_slow == "restart"
            if wanted and restart_policy.may_restart(self._incidents.budget, spec.restarts.restart_policy):
                self._incidents.fail(attempt, failure_diagnosis.slow(news.rank, least_step(views), news.sentence))
                return True
        return False

    # --- told once --------------------------------------------------------------------------------------------

    def _tell_silence(self, suspects: Sequence[Late], views: Sequence[RankView]) -> None:
        """Ranks over half their limit: told once, until all of them make progress again."""
        if suspects and not self._silent:
            self._context.tell(HangSuspected(hang_detection.of_laggard(suspects, views)))
        self._silent = bool(suspects)

    def _tell_slow_deaths(self, dying: Mapping[int, float], now: float) -> None:
        """Ranks whose end has begun, and when: told once where the kernel takes its time."""
        slow = {rank: now - since for rank, since in dying.items() if now - since > _SLOW_DEATH}
        for rank in slow.keys() - self._slow_to_die:
            self._context.tell(RankDyingSlowly(rank, slow[rank]))
        self._slow_to_die = set(slow)

    # --- other states -----------------------------------------------------------------------------------------

    def _examining(self, attempt: Attempt, now: float) -> None:
        cause = attempt.examination.look(attempt.can_replace)
        if cause is not None:
            self._incidents.examined(attempt, cause)

    def _pausing(self, attempt: Attempt, now: float) -> None:
        if attempt.broken_off or not self._judge_failures(attempt, now):
            self._stopping(attempt, now)

    def _stopping(self, attempt: Attempt, now: float) -> None:
        group = attempt.group
        views, pages = group.views(), group.pages()
        self._tell_progress(attempt, views, now)
        self._tell_proof(attempt, views, pages, now)
        if not group.empty:  # what all ranks hold already need not wait for their ends
            self._saving.tick([page for _, page in pages], front(views), now)
        elif self._is_swept(group):
            done = group.all_done() and all_attached(views)
            self._context.loop.post(Event.ALL_DONE if done else Event.ALL_GONE)

    def _clearing(self, attempt: Attempt, now: float) -> None:
        loop, group = self._context.loop, attempt.group
        if group.empty and self._is_swept(group):
            loop.cancel(Event.GRACE_OVER)
            attempt.grace_cut.end()
            loop.post(Event.ALL_GONE)
        elif attempt.grace_cut.look(now):
            loop.post(Event.GRACE_OVER)  # the rest of the grace is of no use to any of them

    _looks: Mapping[JobState, Callable[[Watch, Attempt, float], None]] = {
        JobState.RUNNING: _running,
        JobState.EXAMINING: _examining,
        JobState.PAUSING: _pausing,
        JobState.STOPPING: _stopping,
        JobState.CLEARING: _clearing,
        JobState.ABANDONING: _clearing,
        JobState.LEAVING: _clearing,
    }
