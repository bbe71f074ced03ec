"""Supervises one job: takes events through the state table, and performs the actions that the table names.

The event loop (`engine/event_loop.py`) runs the Supervisor in the main thread. Which action follows from which event is
decided in `policy/state_machine.py`, which is pure; what is observed in a state is in `engine/watch.py`; failures are
judged in `engine/incidents.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ftlaunch.checkpoints.final_save import FinalSave
from ftlaunch.checkpoints.resume import ResumeDecision
from ftlaunch.checkpoints.save_scheduler import Answer, SaveScheduler
from ftlaunch.checkpoints.saver_silence import SaverSilence
from ftlaunch.checkpoints.saver_watch import SaverWatch
from ftlaunch.engine.attempt import Attempt
from ftlaunch.engine.context import Context, Edges
from ftlaunch.engine.incidents import Incidents
from ftlaunch.engine.watch import Watch
from ftlaunch.health.limit_learning import LimitLearning
from ftlaunch.health.numerics_monitor import NumericsMonitor
from ftlaunch.health.progress import AttemptProgress, Progress
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.policy import state_machine
from ftlaunch.policy.cause_kinds import RESUME
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.policy.states import ENDS, Action, Event, JobState
from ftlaunch.ranks.rank import Rank, SpawnFailed
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.base import Note
from ftlaunch.reporting.events.failures import InternalError, describe_error, format_traceback
from ftlaunch.reporting.events.job import JobEnded, JobFailed, JobFinished, JobStopped, StopAnnounced
from ftlaunch.reporting.overview import Overview, of_rank
from ftlaunch.system.file_thread import FileSystemSilent, FileThread
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.protocol import Why

_STORAGE_PATIENCE_SECONDS = 600.0
"""time without a sign of work after which storage counts as silent"""
_HURRIED_PATIENCE_SECONDS = 5.0
"""the patience with storage after a request to hurry"""


class Supervisor:
    """The `Handler` of the event loop for one job, over all attempts of the job."""

    def __init__(self, context: Context, edges: Edges) -> None:
        """Start the saver; no rank is started yet.

        Args:
            context: what all modules of the engine share.
            edges: what the engine needs from the outside world.

        Raises:
            OSError: the saver cannot be started, or the checkpoint directory cannot be read.
        """
        spec = context.spec
        pages = context.pages
        report = context.report
        loop = context.loop
        self._context = context
        self._edges = edges
        self.state = JobState.READY
        self.attempt: Attempt | None = None
        """the newest attempt; None before the first"""
        self._number = -1  # of the newest attempt
        self._adopted_number = -1  # of the running attempt to take over
        self._asked_to_stop = False
        self._waits_since = 0.0  # monotonic; when `final_save.note_work` was last called
        self._patience = _STORAGE_PATIENCE_SECONDS
        self.internal_error: Exception | None = None
        """the bug of ftlaunch itself that ends the job; None: there is none"""
        self._progress = Progress(edges.reached, context.clock())
        self._learning = LimitLearning(spec, context.files.of(spec.run_dir), lambda sentence: report(Note(sentence)))
        self._numbers = NumericsMonitor(spec, pages)
        self.incidents = Incidents(context, self._progress, self._numbers)
        self.saving = SaveScheduler(spec=spec, pages=pages, start=edges.start_saver, abnormal=self._numbers.abnormal)
        self.final_save = FinalSave(
            saving=self.saving, pages=pages, numbers=self._numbers, post=loop.post, peers=edges.peers
        )
        self._resume = ResumeDecision(
            spec=spec,
            found=edges.inherited,
            pages=pages,
            saving=self.saving,
            numbers=self._numbers,
            report=report,
            cannot=self._cannot_resume,
            peers=edges.peers,
            files=context.files.of(spec.checkpoint_dir),
        )
        saver_watch = SaverWatch(
            spec=spec,
            loop=loop,
            clock=context.clock,
            report=report,
            on_answer=self._on_answer,
            abandon=self.final_save.abandon,
        )
        saver_watch.listen(self.saving)
        self._silence = SaverSilence(self.saving, report)
        self._watch = Watch(
            context=context,
            incidents=self.incidents,
            saving=self.saving,
            numbers=self._numbers,
            learning=self._learning,
            processor_time=edges.processor_time,
        )
        loop.register(edges.deaths.fd, self._on_deaths)

    # --- for the event loop -----------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Take an event through the state table, and perform the actions of the transition."""
        self._asked_to_stop = self._asked_to_stop or event in (Event.STOP, Event.HURRY)
        self.state, actions = state_machine.advance(self.state, event)
        for action in actions:
            self._perform[action](self)

    def poll(self) -> None:
        """Report outcomes of notices and a silent saver, begin the first attempt if it is due, observe the ranks."""
        self._edges.report_outcomes()
        self._silence.poll(self._context.clock())
        self.begin_when_ready()
        self._watch.poll(self.state, self.attempt)

    def begin_when_ready(self) -> None:
        """Post the event that begins the first attempt, once the fork server is ready or will never be.

        Does nothing after the job has left the state READY.
        """
        if self.state is not JobState.READY:
            return
        settled = self._edges.may_begin(self._context.clock())
        if (adoptable := self._edges.adoptable()) is not None:
            self._adopted_number = adoptable  # a node that is lost meanwhile counts as lost in this attempt
            self._context.loop.post(Event.ADOPT)
        elif self._context.regroups():
            self._context.loop.post(Event.REGROUP)
        elif settled:
            self._context.loop.post(Event.START)

    def next_poll_at(self) -> float:
        """Return the monotonic moment at which `poll` is to be called at the latest."""
        return self._watch.next_poll_at(self.state, self.attempt)

    def fail(self, error: Exception) -> None:
        """End the job in good order for an exception that no handler of the loop expects.

        The ranks leave and their newest step is saved. If the step cannot be saved, memory keeps the step.

        Raises:
            Exception: `error` again, if there was no attempt yet, or the job is being ended for an earlier exception.
        """
        if self.internal_error is not None or self.attempt is None:
            raise error
        self.internal_error = error
        self.incidents.note_internal_error(f"a bug of ftlaunch's own: {describe_error(error)}")
        context = self._context
        run_dir = context.spec.run_dir
        context.report(InternalError(error, write_traceback(context.files.of(run_dir), run_dir, error)))
        context.loop.post(Event.BROKEN)

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDS

    # --- called by the loop, the rank group and the saver -------------------------------------------------------

    def _on_deaths(self) -> None:
        dying = self._edges.deaths.read_dying()
        if self.state is JobState.RUNNING and self.attempt is not None:
            self.attempt.on_dying(dying)

    def _on_exit(self, rank: Rank) -> None:
        assert self.attempt is not None
        self.attempt.on_exit(rank)

    def _on_answer(self, answer: Answer) -> None:
        """Hand an answer of the saver, or the news of its death, to those who wait for an answer."""
        is_running = self.state is JobState.RUNNING
        if answer["did"] == "find" and is_running:
            self._resume.handle_answer(answer)
        elif answer["did"] == "go_back":
            self._resume.went_back(answer, goes_on=is_running)
        self.final_save.handle_answer(answer)

    def _cannot_resume(self, sentence: str) -> None:
        """End the job because no attempt can take up its state."""
        assert self.attempt is not None
        cause = Cause(kind=RESUME, rank=-1, step=NONE, sentence=sentence, signature=RESUME)
        self.incidents.give_up(self.attempt, cause, sentence)

    # --- actions ----------------------------------------------------------------------------------------------

    def _begin(self, number: int) -> Attempt:
        """Make the attempt `number` and prepare all that observes it; no rank is started or taken over yet."""
        context = self._context
        self._number = number
        group = self._edges.make_group(number, self._on_exit)
        attempt = Attempt(
            context=context,
            number=number,
            group=group,
            progress=AttemptProgress(self._progress, len(context.pages), first=number == 0),
            waits=self._learning.of_attempt(),
        )
        self.attempt = attempt
        self._edges.deaths.forget()
        self._numbers.begin_attempt(group.pages)
        self.saving.start_clock(context.clock())
        self.incidents.kernel.begin()
        return attempt

    def _adopt(self) -> None:
        attempt = self._begin(self._adopted_number)
        self._edges.adopt(attempt.group)
        attempt.progress.adopted(attempt.group.views())
        attempt.proof.adopt(attempt.group.pages())
        attempt.adopt()

    def _spawn(self) -> None:
        attempt = self._begin(self._number + 1)
        try:
            attempt.spawn(self._prepare)
        except SpawnFailed as failed:
            self.incidents.judge_spawn_failure(attempt, failed)
            return
        self._resume.begun()

    def _prepare(self) -> None:
        """Decide where the attempt takes its state from, and write this into the pages. Raises OSError."""
        kind, step = self._resume.decide(first=self._number == 0)
        self._context.pages.prepare(kind, step, self.saving.first_due(max(step, 0)))

    def _replace_rank(self) -> None:
        cause = self.incidents.cause
        verdict = self.incidents.verdict
        attempt = self.attempt
        assert cause is not None
        assert verdict is not None
        assert attempt is not None
        attempt.group.replace(cause.rank, self._context.clock() + verdict.delay)

    def _examine(self) -> None:
        assert self.attempt is not None
        self.attempt.examination.begin()

    def _end_ranks(self) -> None:
        """Tell all ranks to leave, and give them the grace."""
        assert self.attempt is not None
        cause = None if self.state is JobState.LEAVING else self.incidents.cause
        now = self._context.clock()
        self.attempt.end(cause, now)
        self._context.loop.post_at(now + self._context.spec.grace, Event.GRACE_OVER)

    def _announce_stop(self) -> None:
        """Announce the step at which all ranks stop. Half of the grace is for reaching the step, half for saving."""
        assert self.attempt is not None
        deadline = self._context.clock() + self._context.spec.grace / 2
        self._context.loop.post_at(deadline, Event.GRACE_OVER)
        self.saving.hurry()
        announced = self.attempt.announce_stop(deadline)
        if announced is not None:
            step, newest = announced
            self._context.report(StopAnnounced(step=step, front=newest))

    def _kill_ranks(self) -> None:
        assert self.attempt is not None
        self._context.loop.cancel(Event.GRACE_OVER)
        self.attempt.kill()

    def _arm_backoff(self) -> None:
        self.incidents.arm_backoff()

    def _save_newest(self) -> None:
        """Begin the last save of the job, or of an attempt before the nodes change."""
        whys = {JobState.SALVAGE: Why.INCIDENT, JobState.WRAP_UP: Why.END}
        self._patience = self._context.spec.grace if self._asked_to_stop else _STORAGE_PATIENCE_SECONDS
        self.final_save.begin(whys.get(self.state, Why.STOP))
        self._wait_for_save()

    def _limit_save(self) -> None:
        self._patience = self._context.spec.grace
        self._wait_for_save()

    def _hurry_save(self) -> None:
        self._patience = _HURRIED_PATIENCE_SECONDS
        self._wait_for_save()

    def _wait_for_save(self) -> None:
        self.final_save.note_work()
        self._waits_since = self._context.clock()
        self._context.loop.post_at(self._waits_since + self._patience, Event.GRACE_OVER)

    def _judge_save(self) -> None:
        """Wait on for a saver that works; give the last save up after `_patience` without a sign of work.

        GRACE_OVER may also be the end of the ranks' grace, posted before the last save began to wait.
        """
        silent_seconds = self._context.clock() - self._waits_since
        if silent_seconds >= self._patience and self.final_save.judge(silent_seconds):
            self._wait_for_save()

    def _go_on(self) -> None:
        self._context.loop.cancel(Event.GRACE_OVER)
        self._context.regroup(not self.final_save.error)
        self.incidents.start_at_once()

    def _finish(self) -> None:
        for timer in (Event.GRACE_OVER, Event.BACKOFF_OVER):
            self._context.loop.cancel(timer)

    _perform: Mapping[Action, Callable[[Supervisor], None]] = {
        Action.SPAWN: _spawn,
        Action.ADOPT: _adopt,
        Action.REPLACE_RANK: _replace_rank,
        Action.EXAMINE: _examine,
        Action.END_RANKS: _end_ranks,
        Action.ANNOUNCE_STOP: _announce_stop,
        Action.KILL_RANKS: _kill_ranks,
        Action.ARM_BACKOFF: _arm_backoff,
        Action.SAVE_NEWEST: _save_newest,
        Action.LIMIT_SAVE: _limit_save,
        Action.HURRY_SAVE: _hurry_save,
        Action.JUDGE_SAVE: _judge_save,
        Action.GO_ON: _go_on,
        Action.FINISH: _finish,
    }

    # --- the state of the job, and its end ----------------------------------------------------------------------

    def overview(self, ranks: bool = True) -> Overview:
        """Return the state of the job at this moment.

        Args:
            ranks: whether the state of each rank is wanted; of many ranks this takes time.
        """
        context = self._context
        budget = self.incidents.budget
        attempt = self.attempt
        views = [] if attempt is None or not ranks else attempt.group.views()
        known = {} if attempt is None else attempt.group.ranks
        now = context.clock()
        return Overview(
            job_id=context.spec.job_id,
            state=self.state.value,
            attempt=self._number,
            restarts_left=budget.left,
            max_restarts=budget.limits.restarts,
            committed=self.saving.committed,
            in_memory=context.pages.newest_common(),
            ranks_alive=0 if attempt is None else len(attempt.group.living),
            run_dir=str(context.spec.run_dir),
            checkpoint_dir=str(context.spec.checkpoint_dir),
            last_incident=self.incidents.last,
            ranks=[of_rank(known[view.rank], view, now) for view in views],
            slow=[] if attempt is None else [news.sentence for news in attempt.stragglers.slow.values()],
            failed_calls=context.bulkheads.counts,
            resume=self._watch.newest_proof,
        )

    def ended(self, code: int) -> JobEnded:
        """Return the job's last event.

        Args:
            code: the exit code of the job.
        """
        spec = self._context.spec
        incidents = self.incidents
        committed = self.saving.committed
        if self.state is JobState.DONE:
            return JobFinished(
                spec=spec,
                state=self.state,
                code=code,
                committed=committed,
                budget=incidents.budget,
                complete_since=self._complete_since(),
            )
        if self.state is JobState.STOPPED:
            return JobStopped(spec=spec, state=self.state, code=code, committed=committed, budget=incidents.budget)
        return JobFailed(
            spec=spec,
            state=self.state,
            code=code,
            committed=committed,
            budget=incidents.budget,
            cause=incidents.cause,
            verdict=incidents.verdict,
            unsaved=self.final_save.error,
            attempt=self._number,
        )

    @property
    def no_requeue_code(self) -> int:
        """The exit code of a job that is given up for a reason that would repeat in every later start."""
        return self._context.spec.restarts.no_requeue_code

    def unsaved(self) -> str:
        """Return the last line of a job whose newest step could not be saved; "" if the step was saved."""
        if not self.final_save.error:
            return ""
        step = self._context.pages.newest_common()
        memory_dir = None if self._context.spec.nodes.several else self._context.memory_dir
        return messages.unsaved(step, self.final_save.error, memory_dir)

    def _complete_since(self) -> str:
        """Return when the job's last step was committed, if the only attempt found nothing left to train; else ""."""
        if self.attempt is None or self._number or self.attempt.progress.nothing_left != self.saving.committed:
            return ""
        folder = self._context.spec.checkpoint_dir
        step = self.saving.committed
        try:
            since = self._context.files.of(folder).call(lambda: layout.committed_at(folder, step))
        except FileSystemSilent:
            return ""
        return "" if since is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))

    def close(self) -> None:
        """Write down the learned hang limits, and close the kernel's log."""
        self._learning.note()
        self.incidents.kernel.close()


def write_traceback(files: FileThread, run_dir: Path, error: Exception) -> Path | None:
    """Write the traceback of an exception into the run dir; return the file, or None where it cannot be written."""
    path = run_dir / "bug.txt"
    text = format_traceback(error)
    try:
        files.call(lambda: path.write_text(text))
    except OSError:  # the disk may be what has failed; the journal has the traceback, too
        return None
    return path
