"""The one loop: it waits for ranks, signals, the saver, the control socket and the next deadline.

It is the only place that waits, and it performs what the state machine decides. Decisions are made in
machine, policy, health and diagnosis.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ftlaunch.checkpoints.final_save import LastSave
from ftlaunch.checkpoints.resume import Resuming
from ftlaunch.checkpoints.save_scheduler import Answer, SaveScheduler
from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.common.signal_names import signal_name
from ftlaunch.engine.grace_cut import Clearing
from ftlaunch.engine.hang_examination import Examining
from ftlaunch.engine.workspace import Workspace
from ftlaunch.health import hang_detection
from ftlaunch.health import stragglers as slow
from ftlaunch.health.limit_learning import Learning
from ftlaunch.health.numerics import NumericFault
from ftlaunch.health.numerics_monitor import Soundness
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.policy import failure_diagnosis, restart_policy, state_machine
from ftlaunch.policy.states import ENDS, Action, Event, JobState
from ftlaunch.ranks import environment
from ftlaunch.ranks.exit_watch import Knells
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.ranks.group import RankGroup, SpawnFailed
from ftlaunch.reporting.overview import status
from ftlaunch.reporting.reporter import Reporter
from ftlaunch.spec import rule_parser
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.control_socket import Client, Control
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.kernel_log import Kernel
from ftlaunch.system.signals import Signals
from ftlaunch_contract import protocol
from ftlaunch_contract.protocol import Why

_TICK = 0.1  # seconds between looks at the pages
_FAST_TICK = 0.01  # while something is about to happen: a stop, a sweep, a resume
# of a core, what looking at the pages of many ranks may take: it is done less often then, once a second at least
_SHARE, _FAST_SHARE = 0.008, 0.2
_SLOWEST_TICK = 1.0
_SAVER_AGAIN = 1.0  # seconds until it is tried again to start one
_HURRY_AFTER = 0.5  # a second Ctrl-C counts as "now" only so long after the first
_HELD_UP = 2.0  # a loop that comes so late was itself held up: ages count anew


class Supervisor:
    """Runs one job to its end."""

    def __init__(
        self, spec: JobSpec, home: Workspace, reporter: Reporter, signals: Signals, helpers: HelperProcesses
    ) -> None:
        """home: the places of the job, locked; reporter: journal and terminal."""
        self.spec, self.home, self.reporter, self.signals = spec, home, reporter, signals
        self._helpers = helpers
        self.pages = home.pages
        self.state = JobState.READY
        self.budget = restart_policy.Budget(
            restart_policy.RestartLimits(
                restarts=spec.restarts.max_restarts,
                hang_restarts=spec.restarts.max_hang_restarts,
                window=spec.restarts.restart_window,
                refill_after=spec.restarts.refill_after,
                same_error=spec.restarts.max_same_error,
                without_progress=spec.restarts.max_without_progress,
            )
        )
        self.rules = (*spec.restarts.fault_rules, *rule_parser.builtin())
        self.kernel = Kernel()
        self.learning = Learning(spec, reporter.say)
        self.slow = slow.SlowRanks()
        self.backoff = restart_policy.Backoff(spec.restarts.backoff_first, spec.restarts.backoff_max)
        self.cause: failure_diagnosis.Cause | None = None
        self.verdict: restart_policy.Verdict | None = None
        self.attempt = -1
        self._gpus = Gpus()
        self._base_env = dict(os.environ)
        self._marker = f"{protocol.ENV_MEMORY_DIR}={home.memory_dir}"
        # before all else that takes time: the first attempt waits for it
        warm_env = environment.warm_env(spec, self._base_env, home.memory_dir)
        self.warm = Warm(helpers, spec, warm_env, spec.log_dir / "warm.log", reporter.log)
        self.gang = RankGroup(spec, self.pages, self._gpus, self.warm, -1, 0.0)
        self._events: deque[Event] = deque()
        self._selector = selectors.DefaultSelector()
        self._batch = 0
        self._grace_at = self._backoff_at = float("inf")
        self._saver_at = self._saverless = float("inf")  # when to try to start one again; since when there is none
        self._lives: dict[int, int] = {}  # rank -> how often it was started again, alone or with all
        self.examining = Examining(helpers, spec.run_dir, home.pages.directory, self.rules, reporter)
        self.clearing = Clearing(helpers, spec.run_dir, home.pages.directory)
        self._stop_reason = ""
        self._interrupted_at = 0.0
        self._awake_since = self._looked = time.monotonic()
        self._watched, self._watching = 0.0, 0.0  # when the pages were looked at, and what that took of a processor
        self._ended = False  # a rank has, since then
        self.soundness = Soundness(spec, self.pages)
        self.saving = SaveScheduler(spec, self.pages, self._start_saver, self.soundness.abnormal)
        self.last_save = LastSave(self.saving, self.pages, self.soundness, self._post)
        self.resuming = Resuming(spec, home, self.saving, self.soundness, reporter, self._cannot_resume)
        self.control = Control(home.memory_dir)
        self.knells = Knells([page.path for page in self.pages.pages])
        self._register(self.knells.fd, self._on_knell)
        self._register(self.control.fd, self._on_connect)
        self._register(signals.fd, self._on_signals)
        self._listen_to_warm()

    # --- the loop -----------------------------------------------------------------------------------------

    def run(self) -> JobState:
        """Run until the job has ended."""
        self._notice_warm(time.monotonic())
        while self.state not in ENDS:
            self._settle()
            self._batch += 1
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._look()
        self._selector.close()
        return self.state

    def close(self) -> None:
        """Let the saver go and stop listening."""
        self.warm.dismiss()
        self.learning.note()
        self.control.close()
        self.kernel.close()
        self.saving.link.close(self.spec.grace)
        self.warm.close()

    def _settle(self) -> None:
        """Take every posted event through the table."""
        while self._events:
            event = self._events.popleft()
            state, actions = state_machine.advance(self.state, event)
            self.state = state
            for action in actions:
                self._perform[action](self)

    def _patience(self) -> float:
        """Seconds to wait for something to happen."""
        if self._events or self.state in ENDS:
            return 0.0
        return max(0.0, min(self._next_watch(), self._grace_at, self._backoff_at, self._saver_at) - time.monotonic())

    def _next_watch(self) -> float:
        """When to look at the pages again, if nothing happens before: what happens is heard at once."""
        slow = self.state in (
            JobState.READY,
            JobState.RUNNING,
            JobState.BACKOFF,
            JobState.WRAP_UP,
            JobState.LAST_GASP,
            JobState.SALVAGE,
        )
        resuming = self.reporter.resume_awaited and self.gang.resuming()
        fast = not slow or resuming or self.gang.refilling
        least, share = (_FAST_TICK, _FAST_SHARE) if fast else (_TICK, _SHARE)
        return self._watched + min(max(least, self._watching / share), _SLOWEST_TICK)

    def _look(self) -> None:
        """Everything that is due by the clock, and everything that shows by looking."""
        now = time.monotonic()
        if now - self._looked > _HELD_UP:
            self._awake_since = now
        self._looked = now
        self.reporter.notice_outcomes()
        self._notice_warm(now)
        if now >= self._grace_at:
            self._grace_at = float("inf")
            self._post(Event.GRACE_OVER)
        if now >= self._backoff_at:
            self._backoff_at = float("inf")
            self._post(Event.BACKOFF_OVER)
        if now >= self._saver_at:
            self._revive_saver(now)
        if now < self._next_watch() and not self._ended:
            return
        self._ended, began = False, time.thread_time()
        if self.state is JobState.RUNNING:
            self._watch(now)
        elif self.state is JobState.EXAMINING:
            self._watch_examination()
        elif self.state is JobState.STOPPING:
            self._watch_stop(now)
        elif self.state in (JobState.CLEARING, JobState.ABANDONING, JobState.LEAVING):
            self._watch_clearing()
        self._watched = time.monotonic()
        self._watching = time.thread_time() - began  # what others had of the processor meanwhile does not count

    def _post(self, event: Event) -> None:
        self._events.append(event)

    def _register(self, fd: int, handler: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, handler)

    # --- watching -----------------------------------------------------------------------------------------

    def _watch(self, now: float) -> None:
        self._refill(now)
        self.gang.notice_phases()
        self.gang.notice_signs(now)
        self.reporter.notice_progress(self.gang, self.attempt, now)
        if self._judge_numbers() or self._judge_failures():
            return
        views = self.gang.views()
        waited = hang_detection.waits(views)
        self.learning.look(waited, self._awake_since, now)
        if self._judge_ends():
            return
        self.saving.tick(self.gang, now)
        late = hang_detection.late_ranks(waited, now, self._awake_since, self.learning.limits)
        if late:
            self.examining.suspect(hang_detection.of_laggard(late, views), views)
            self._post(Event.HANG)
            return
        if self.spec.limits.on_slow != "off":
            self._watch_slow_ranks(now)
        suspects = hang_detection.suspects(waited, now, self._awake_since, self.learning.limits)
        self.reporter.notice_silence(suspects, views)

    def _watch_slow_ranks(self, now: float) -> None:
        for news in self.slow.look(self.gang.own_times(), now):
            self.reporter.slow_rank(news)
            if (
                news.slow
                and self.spec.limits.on_slow == "restart"
                and restart_policy.may_restart(self.budget, self.spec.restarts.restart_policy)
            ):
                self._fail(failure_diagnosis.slow(news.rank, self.gang.least_step(), news.sentence))
                return

    def _judge_numbers(self) -> bool:
        """Whether what the ranks say of their losses and replicas ends the attempt."""
        for finding in self.soundness.look():
            self.reporter.unsound(finding)
            if finding.act != "warn":
                self._end_unsound(finding)
                return True
        return False

    def _end_unsound(self, finding: NumericFault) -> None:
        """Stop, or go back: the latter is judged as any failure, and costs a restart."""
        skipping = self.soundness.end_attempt(finding)
        kind = "divergence" if finding.kind == "divergence" else "numerical"
        cause = failure_diagnosis.Cause(kind, finding.rank, finding.step, finding.sentence, f"{kind}:{finding.kind}")
        if finding.act == "rollback":
            where = f"going back to a healthy checkpoint from before step {finding.before}"
            self._fail(replace(cause, sentence=f"{finding.sentence}; {where}{skipping}"))
            return
        self._give_up(cause, f"{finding.sentence}; not restarting (on_{finding.kind}: stop)")

    def _judge_failures(self) -> bool:
        """Whether a rank has failed; one that is about to end is waited for, others may have left because of it."""
        dying = self.gang.dying()
        self.reporter.notice_dying(dying, time.monotonic())
        failed = [] if dying else self.gang.failed()
        if failed:
            heard = self.kernel.heard()
            self._fail(failure_diagnosis.first_cause([replace(left, kernel=heard) for left in failed], self.rules))
        return bool(failed)

    def _judge_ends(self) -> bool:
        """Whether all ranks have ended well."""
        if self.gang.empty and self.gang.all_done():
            if self.gang.sweep(self._helpers.pids):
                self._post(Event.ALL_DONE)
            return True
        return False

    def _watch_examination(self) -> None:
        cause = self.examining.look(self._can_replace)
        if cause is not None:
            self._fail(cause)

    def _watch_stop(self, now: float) -> None:
        self.reporter.notice_progress(self.gang, self.attempt, now)
        if not self.gang.empty:
            self.saving.tick(self.gang, now)  # what all ranks hold already need not wait for their ends
            return
        if not self.gang.sweep(self._helpers.pids):
            return
        self._post(Event.ALL_DONE if self.gang.all_done() and self.gang.all_attached() else Event.ALL_GONE)

    def _watch_clearing(self) -> None:
        if self.gang.empty and self.gang.sweep(self._helpers.pids):
            self._grace_at = float("inf")
            self.clearing.end()
            self._post(Event.ALL_GONE)
        elif self.clearing.look(self.gang, time.monotonic()):
            self._post(Event.GRACE_OVER)  # of no use to any of them

    def _fail(self, cause: failure_diagnosis.Cause) -> None:
        """Judge an incident, and post the verdict."""
        verdict = restart_policy.judge(
            cause,
            self.budget,
            self.backoff,
            policy=self.spec.restarts.restart_policy,
            progressed=self.reporter.progressed or self._lived_long(cause.rank),
            random=random.random(),  # noqa: S311 - jitter
            now=time.monotonic(),
            step=self.reporter.newest_step(self.gang),
            alone=self._can_replace(cause.rank),
        )
        self.cause, self.verdict, self.budget = cause, verdict, verdict.budget
        self.reporter.incident(cause, verdict, self.gang, self.examining.let_go())
        retry = Event.RANK_RETRY if self._can_replace(cause.rank) else Event.FAILURE_RETRY
        self._post(retry if verdict.restart else Event.FAILURE_FATAL)

    def _can_replace(self, rank: int) -> bool:
        """Whether a rank can be started again alone: not where ranks have attached, they agree on every step."""
        return self.spec.restarts.restart_scope == "rank" and rank in self.gang.members and not self.gang.any_attached()

    def _lived_long(self, rank: int) -> bool:
        """Whether a rank that says nothing of its steps has lived so long that its end is a new story."""
        member = self.gang.members.get(rank)
        started = self.gang.started if member is None else member.started
        return not self.gang.any_attached() and time.monotonic() - started > failure_diagnosis.LONG_LIFE

    # --- what happens from outside ------------------------------------------------------------------------

    def _on_exit(self, rank: int) -> None:
        member = self.gang.members[rank]
        pidfd = member.process.pidfd
        self._selector.unregister(pidfd)
        if not member.process.reap():
            self._register(pidfd, lambda: self._on_exit(rank))
            return
        member.order = self._batch if member.order < 0 else member.order
        member.ended = time.monotonic()
        self._ended = True
        self.reporter.rank_exited(rank, member, self.gang.page(rank))

    def _on_knell(self) -> None:
        """Ranks begin to die by a signal: the others can leave meanwhile, whatever the verdict will be."""
        rung = self.knells.rung()
        if self.state is not JobState.RUNNING or self.gang.dying():
            return  # those that come now leave because they are told to, or are seen when they have gone
        dying = self.gang.note_dying(rung, self._batch, time.monotonic())
        for rank, signum in dying.items():
            self.reporter.rank_dying(rank, signum)
        if any(not self._can_replace(rank) for rank in dying):
            self.pages.ask_leave()
            self.gang.ask_to_leave()

    def _on_signals(self) -> None:
        for signum in self.signals.read():
            name = signal_name(signum)
            now = time.monotonic()
            self._stop(f"{name} to the supervisor")
            if signum == signal.SIGINT:
                if self._interrupted_at and now - self._interrupted_at > _HURRY_AFTER:
                    self.reporter.say("interrupted again: killing the ranks, saving their newest snapshots")
                    self._post(Event.HURRY)
                self._interrupted_at = now

    def _stop(self, reason: str) -> None:
        if not self._stop_reason:  # a scheduler may signal twice, milliseconds apart: once is enough
            self._stop_reason = reason
            self.reporter.stop_requested(reason)
            self._post(Event.STOP)

    def _on_connect(self) -> None:
        client = self.control.accept()
        if client is not None:
            self._register(client.fd, lambda: self._on_client(client))

    def _on_client(self, client: Client) -> None:
        try:
            request = client.request()
        except (OSError, ValueError):
            self._selector.unregister(client.fd)
            client.close()
            return
        if request is None:
            return
        self._selector.unregister(client.fd)
        client.answer(self._answer(request))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("do") == "stop":
            self._stop(str(request.get("why", "asked on the control socket"))[:200])
            return {"ok": True}
        if request.get("do") == "status":
            return status(self)
        return {"ok": False, "error": "cannot do that: known are `status` and `stop`"}

    # --- the warm parent ----------------------------------------------------------------------------------

    def _listen_to_warm(self) -> None:
        if self.warm.link is not None:
            self._register(self.warm.link.fd, self._on_warm)

    def _on_warm(self) -> None:
        assert self.warm.link is not None
        self._selector.unregister(self.warm.link.fd)
        self.warm.hear()
        self._listen_to_warm()

    def _notice_warm(self, now: float) -> None:
        """Begin once it is ready, or will not be."""
        if self.warm.late(now):
            assert self.warm.link is not None
            self._selector.unregister(self.warm.link.fd)
            self.warm.give_up()
        if self.warm.news:
            self.reporter.say(f"starting plain processes: {self.warm.news}")
            self.warm.news = ""
        if self.state is JobState.READY and not self.warm.starting:
            self._post(Event.START)

    # --- the saver ----------------------------------------------------------------------------------------

    def _start_saver(self) -> SaverLink:
        link = SaverLink(self._helpers, self._marker, self.home.locks)
        self._register(link.fd, self._on_saver)
        return link

    def _on_saver(self) -> None:
        now = time.monotonic()
        answers = self.saving.answers(now)
        if answers is None:
            self._selector.unregister(self.saving.link.fd)
            self._revive_saver(now)
            return
        for answer in answers:
            self._heed(answer)

    def _revive_saver(self, now: float) -> None:
        """The ranks go on without one for as long as none can be started: what is due is saved later.

        At its end the job waits no longer than the grace, counted from when there was none.
        """
        self._saver_at = float("inf")
        try:
            answers = self.saving.revive()
        except OSError as error:
            self._saver_at = now + _SAVER_AGAIN
            if self._saverless == float("inf"):
                self._saverless = now
                self.reporter.saver_missing(error)
            if now - self._saverless > self.spec.grace:
                self.last_save.abandon(f"no saver can be started: {error.strerror}")
            return
        self._saverless = float("inf")
        for answer in answers:
            self._heed(answer)

    def _heed(self, answer: Answer) -> None:
        if answer["did"] == "die":
            self.reporter.saver_died(answer)
        elif answer["did"] == "save":
            self.reporter.saved(answer)
        elif self.state is JobState.RUNNING:
            self.resuming.heed(answer)
        self.last_save.heed(answer)

    # --- actions ------------------------------------------------------------------------------------------

    def _save_newest(self) -> None:
        why = {JobState.LAST_GASP: Why.STOP, JobState.SALVAGE: Why.INCIDENT, JobState.WRAP_UP: Why.END}[self.state]
        self.last_save.begin(why)

    def _spawn(self) -> None:
        self.attempt += 1
        now = time.monotonic()
        self.gang = RankGroup(self.spec, self.pages, self._gpus, self.warm, self.attempt, now)
        self.examining.begin_attempt()
        self._lives = {}
        self.learning.begin_attempt()
        self.slow.begin_attempt()
        self.knells.forget()
        self.soundness.begin(self.gang)
        kind, step = self.resuming.decide(first=self.attempt == 0)
        self.pages.prepare(kind, step, self.saving.first_due(max(step, 0)))
        self.saving.begin_attempt(now)
        self.kernel.begin()
        failure = None
        try:
            self.gang.spawn(self._base_env, self.control.path, self._marker)
        except SpawnFailed as failed:
            failure = failed
        for rank, member in self.gang.members.items():
            self._register(member.process.pidfd, lambda rank=rank: self._on_exit(rank))  # type: ignore[misc]
        self.reporter.attempt_started(self.gang, self.attempt)
        if failure is not None:
            self._fail(failure_diagnosis.spawn_failure(failure.rank, failure.reason, self.rules))

    def _replace_rank(self) -> None:
        assert self.cause is not None
        assert self.verdict is not None
        self.gang.dismiss(self.cause.rank, time.monotonic() + self.verdict.delay)

    def _refill(self, now: float) -> None:
        for rank in self.gang.due(now):
            restarts = self._lives[rank] = self._lives.get(rank, self.attempt) + 1
            try:
                self.gang.refill(rank, restarts, now, self._base_env, self.control.path, self._marker)
            except SpawnFailed as failed:
                self._fail(failure_diagnosis.spawn_failure(failed.rank, failed.reason, self.rules))
                return
            self._register(self.gang.members[rank].process.pidfd, lambda rank=rank: self._on_exit(rank))  # type: ignore[misc]
            self.reporter.rank_restarted(rank, self.gang.members[rank], restarts)

    def _cannot_resume(self, sentence: str) -> None:
        self._give_up(failure_diagnosis.Cause("resume", -1, NONE, sentence, "resume"), sentence)

    def _give_up(self, cause: failure_diagnosis.Cause, sentence: str) -> None:
        """What no policy is asked about."""
        self.cause, self.verdict = cause, restart_policy.Verdict(False, 0.0, sentence, self.budget)
        self.reporter.incident(cause, self.verdict, self.gang)
        self._post(Event.FAILURE_FATAL)

    def _end_ranks(self) -> None:
        """Tell all to leave. After a hang those with hooks have nothing to do with a grace: they are killed."""
        self.examining.end()
        self.pages.ask_leave()
        if self.cause is not None and self.cause.kind == "hang" and self.gang.all_attached():
            self._kill_ranks()
            return
        self.gang.ask_to_leave()
        now = time.monotonic()
        self._grace_at = now + self.spec.grace
        self.clearing.begin(None if self.state is JobState.LEAVING else self.cause, self.gang, now)

    def _announce_stop(self) -> None:
        """Announce the step to stop at; half of the grace is for reaching it, the other for saving."""
        now = time.monotonic()
        self._grace_at = now + self.spec.grace / 2
        self.saving.hurry()
        if not self.gang.all_attached():
            # nobody has made a step in this attempt: what is in memory from before is all there is to save
            self.pages.ask_leave()
            self.gang.ask_to_leave()
            return
        front, seconds = self.gang.front()
        step = protocol.announce_step(front, seconds)
        self.pages.ask_stop(step, int(self._grace_at * 1e9))
        self.reporter.stop_announced(step, front)

    def _kill_ranks(self) -> None:
        self.examining.end()
        self._grace_at = float("inf")
        self.reporter.killing(self.gang, self.clearing.why)
        self.clearing.end()
        self.gang.kill()

    def _arm_backoff(self) -> None:
        assert self.verdict is not None
        self._backoff_at = time.monotonic() + self.verdict.delay

    def _finish(self) -> None:
        self._grace_at = self._backoff_at = float("inf")

    _perform: Mapping[Action, Callable[[Supervisor], None]] = {
        Action.SPAWN: _spawn,
        Action.REPLACE_RANK: _replace_rank,
        Action.EXAMINE: lambda self: self.examining.begin(self.gang),
        Action.END_RANKS: _end_ranks,
        Action.ANNOUNCE_STOP: _announce_stop,
        Action.KILL_RANKS: _kill_ranks,
        Action.ARM_BACKOFF: _arm_backoff,
        Action.SAVE_NEWEST: _save_newest,
        Action.FINISH: _finish,
    }
