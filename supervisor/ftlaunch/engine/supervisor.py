"""Runs one job: takes events through the state table, and performs the actions that the table names."""

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

_LONG = 600.0  # seconds without a sign of work, after which storage is taken for one that does not answer
_MOMENT = 5.0  # the same where somebody has asked to hurry


class Supervisor:
    """One job. It is what the event loop works for."""

    def __init__(self, context: Context, edges: Edges) -> None:
        """Raises OSError where the saver cannot be started."""
        spec, pages, tell, loop = context.spec, context.pages, context.tell, context.loop
        self._context, self._edges = context, edges
        self.state = JobState.READY
        self.attempt: Attempt | None = None
        self._number = self._adopts = -1
        self._asked_to_stop, self._waits_since = False, 0.0
        self._patience = _LONG  # seconds without a sign of work that the last save waits for storage
        self.internal_error: Exception | None = None
        """the error of ftlaunch's own that the job ends for"""
        self._progress = Progress(edges.reached, context.clock())
        self._learning = LimitLearning(spec, context.files.of(spec.run_dir), lambda sentence: tell(Note(sentence)))
        self._numbers = NumericsMonitor(spec, pages)
        self.incidents = Incidents(context, self._progress, self._numbers)
        self.saving = SaveScheduler(spec, pages, edges.start_saver, self._numbers.abnormal)
        self.final_save = FinalSave(self.saving, pages, self._numbers, loop.post, edges.peers)
        around = pages, self.saving, self._numbers, tell, self._cannot_resume, edges.peers
        resume = ResumeDecision(spec, edges.inherited, *around, files=context.files.of(spec.checkpoint_dir))
        self._resume = resume
        SaverWatch(spec, loop, context.clock, tell, self._heed, self.final_save.abandon).listen(self.saving)
        self._silence = SaverSilence(self.saving, tell)
        watch = Watch(context, self.incidents, self.saving, self._numbers, self._learning, edges.processor_time)
        self._watch = watch
        loop.register(edges.deaths.fd, self._on_deaths)

    # --- for the event loop -----------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Take an event through the table."""
        self._asked_to_stop = self._asked_to_stop or event in (Event.STOP, Event.HURRY)
        self.state, actions = state_machine.advance(self.state, event)
        for action in actions:
            self._perform[action](self)

    def look(self) -> None:
        """Tell what became of notices, begin the first attempt where that is due, and observe the ranks."""
        self._edges.tell_outcomes()
        self._silence.look(self._context.clock())
        self.begin_when_ready()
        self._watch.look(self.state, self.attempt)

    def begin_when_ready(self) -> None:
        """Begin once ranks can be forked, or are known not to be."""
        if self.state is not JobState.READY:
            return
        settled = self._edges.may_begin(self._context.clock())
        if (adoptable := self._edges.adoptable()) is not None:
            self._adopts = adoptable  # a node that is lost by then counts as lost with that attempt
            self._context.loop.post(Event.ADOPT)
        elif self._context.regroups():
            self._context.loop.post(Event.REGROUP)
        elif settled:
            self._context.loop.post(Event.START)

    def next_look(self) -> float:
        """When to look again at the latest."""
        return self._watch.next_look(self.state, self.attempt)

    def fail(self, error: Exception) -> None:
        """End the job in good order, for an exception that nothing in the loop expects.

        The ranks leave, their newest step is saved, and memory is kept where it cannot be. Raises `error` again where
        the job is being ended for another one already.
        """
        if self.internal_error is not None or self.attempt is None:
            raise error
        self.internal_error = error
        self.incidents.note_internal_error(f"a bug of ftlaunch's own: {describe_error(error)}")
        context = self._context
        context.tell(
            InternalError(error, write_traceback(context.files.of(context.spec.run_dir), context.spec.run_dir, error))
        )
        self._context.loop.post(Event.BROKEN)

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDS

    # --- what happens -----------------------------------------------------------------------------------------

    def _on_deaths(self) -> None:
        dying = self._edges.deaths.heard()
        if self.state is JobState.RUNNING and self.attempt is not None:
            self.attempt.on_dying(dying)

    def _on_exit(self, rank: Rank) -> None:
        assert self.attempt is not None
        self.attempt.on_exit(rank)

    def _heed(self, answer: Answer) -> None:
        """The saver has answered, or died."""
        is_running = self.state is JobState.RUNNING
        if answer["did"] == "find" and is_running:
            self._resume.heed(answer)
        elif answer["did"] == "go_back":
            self._resume.went_back(answer, goes_on=is_running)
        self.final_save.heed(answer)

    def _cannot_resume(self, sentence: str) -> None:
        assert self.attempt is not None
        self.incidents.give_up(self.attempt, Cause(RESUME, -1, NONE, sentence, RESUME), sentence)

    # --- actions ----------------------------------------------------------------------------------------------

    def _begin(self, number: int) -> Attempt:
        context, self._number = self._context, number
        group = self._edges.make_group(number, self._on_exit)
        progress = AttemptProgress(self._progress, len(context.pages), first=number == 0)
        self.attempt = Attempt(context, number, group, progress, self._learning.of_attempt())
        self._edges.deaths.forget()
        self._numbers.begin_attempt(group.pages)
        self.saving.start_clock(context.clock())
        self.incidents.kernel.begin()
        return self.attempt

    def _adopt(self) -> None:
        attempt = self._begin(self._adopts)
        self._edges.adopt(attempt.group)
        attempt.progress.adopted(attempt.group.views())
        attempt.proof.adopt(attempt.group.pages())
        attempt.adopt()

    def _spawn(self) -> None:
        attempt = self._begin(self._number + 1)
        try:
            attempt.spawn(self._prepare)
        except SpawnFailed as failed:
            self.incidents.spawn_failed(attempt, failed)
            return
        self._resume.begun()

    def _prepare(self) -> None:
        """Decide where the attempt takes its state from. Raises OSError."""
        kind, step = self._resume.decide(first=self._number == 0)
        self._context.pages.prepare(kind, step, self.saving.first_due(max(step, 0)))

    def _replace_rank(self) -> None:
        cause, verdict, attempt = self.incidents.cause, self.incidents.verdict, self.attempt
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
        if self.attempt.end(cause, now):
            self._context.loop.cancel(Event.GRACE_OVER)
        else:
            self._context.loop.post_at(now + self._context.spec.grace, Event.GRACE_OVER)

    def _announce_stop(self) -> None:
        """Announce the step to stop at; half of the grace is for reaching it, the other half for saving."""
        assert self.attempt is not None
        deadline = self._context.clock() + self._context.spec.grace / 2
        self._context.loop.post_at(deadline, Event.GRACE_OVER)
        self.saving.hurry()
        announced = self.attempt.announce_stop(deadline)
        if announced is not None:
            self._context.tell(StopAnnounced(*announced))

    def _kill_ranks(self) -> None:
        assert self.attempt is not None
        self._context.loop.cancel(Event.GRACE_OVER)
        self.attempt.kill()

    def _arm_backoff(self) -> None:
        self.incidents.arm_backoff()

    def _save_newest(self) -> None:
        whys = {JobState.SALVAGE: Why.INCIDENT, JobState.WRAP_UP: Why.END}
        self._patience = self._context.spec.grace if self._asked_to_stop else _LONG
        self.final_save.begin(whys.get(self.state, Why.STOP))
        self._wait_for_save()

    def _limit_save(self) -> None:
        self._patience = self._context.spec.grace
        self._wait_for_save()

    def _hurry_save(self) -> None:
        self._patience = _MOMENT
        self._wait_for_save()

    def _wait_for_save(self) -> None:
        self.final_save.look()
        self._waits_since = self._context.clock()
        self._context.loop.post_at(self._waits_since + self._patience, Event.GRACE_OVER)

    def _judge_save(self) -> None:
        silent = self._context.clock() - self._waits_since
        if silent >= self._patience and self.final_save.judge(silent):  # else it is the grace of the ranks that is over
            self._wait_for_save()

    def _go_on(self) -> None:
        self._context.loop.cancel(Event.GRACE_OVER)
        self._context.regroup(not self.final_save.error)
        self.incidents.go_on()

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

    # --- the job at a moment, and its end ---------------------------------------------------------------------

    def overview(self, ranks: bool = True) -> Overview:
        """The job at this moment; without its ranks where these are not asked for."""
        context, budget, attempt = self._context, self.incidents.budget, self.attempt
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
        """The last event."""
        incidents = self.incidents
        told = self._context.spec, self.state, code, self.saving.committed, incidents.budget
        if self.state is JobState.DONE:
            return JobFinished(*told, self._complete_since())
        if self.state is JobState.STOPPED:
            return JobStopped(*told)
        return JobFailed(*told, incidents.cause, incidents.verdict, self.final_save.error, self._number)

    @property
    def no_requeue_code(self) -> int:
        """The exit code of a job that is given up for a reason that would come again."""
        return self._context.spec.restarts.no_requeue_code

    def unsaved(self) -> str:
        """The last line of a job whose newest step could not be saved; else nothing."""
        if not self.final_save.error:
            return ""
        step = self._context.pages.newest_common()
        here = None if self._context.spec.nodes.several else self._context.memory_dir
        return messages.unsaved(step, self.final_save.error, here)

    def _complete_since(self) -> str:
        """Since when storage has the job's last step, where the only attempt found nothing left to train."""
        if self.attempt is None or self._number or self.attempt.progress.nothing_left != self.saving.committed:
            return ""
        folder, step = self._context.spec.checkpoint_dir, self.saving.committed
        try:
            since = self._context.files.of(folder).call(lambda: layout.committed_at(folder, step))
        except FileSystemSilent:
            return ""
        return "" if since is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))

    def close(self) -> None:
        """Have what was learned written down, and give the kernel's log back."""
        self._learning.note()
        self.incidents.kernel.close()


def write_traceback(files: FileThread, run_dir: Path, error: Exception) -> Path | None:
    """Write the traceback of an exception into the run dir; return the file, or None where it cannot be written."""
    path, text = run_dir / "bug.txt", format_traceback(error)
    try:
        files.call(lambda: path.write_text(text))
    except OSError:  # the disk may be what has failed: the journal has the traceback, too
        return None
    return path
