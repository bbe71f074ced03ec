"""What happened, told three ways: the journal, the terminal, and `ftctl status`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftlaunch.common.formatting import size
from ftlaunch.common.masking import masked_args
from ftlaunch.common.signal_names import signal_name
from ftlaunch.engine.workspace import Workspace
from ftlaunch.health.hang_detection import Late, measured, of_laggard
from ftlaunch.health.numerics import NumericFault
from ftlaunch.health.stragglers import StragglerNews
from ftlaunch.notify.client import DeliveryOutcome, NotifierLink
from ftlaunch.policy import failure_diagnosis
from ftlaunch.policy.restart_policy import Verdict
from ftlaunch.policy.states import JobState
from ftlaunch.ranks.group import Rank, RankGroup
from ftlaunch.ranks.view import RankView
from ftlaunch.reporting import messages
from ftlaunch.reporting.memory_news import MemoryNews
from ftlaunch.reporting.terminal import Terminal
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.checkpoint import health_mark, initial
from ftlaunch_contract.checkpoint.initial import InitialCheckpoint
from ftlaunch_contract.files import atomic
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import RESTORED_FROM, Resume, memory_interval, process_start_time

if TYPE_CHECKING:
    from ftlaunch.engine.supervisor import Supervisor

_SLOW_DEATH = 5.0  # seconds that the kernel may take over a dead rank until that is told
_NOTE_PROGRESS = 60.0  # seconds between `progress` events: what a killed supervisor's journal misses at most


class Reporter:
    """Keeps the story of a run: what to say, and what was lost and gained."""

    def __init__(self, spec: JobSpec, home: Workspace, terminal: Terminal, helpers: HelperProcesses) -> None:
        self.spec, self.home, self.terminal = spec, home, terminal
        self.journal = home.journal
        self._journal_broken = False
        self.notifier = NotifierLink(helpers, spec, dict(os.environ))
        self._slow_to_die: set[int] = set()
        self._silent = False  # some rank has made no progress for half its limit, and that was told
        self.progressed = True  # a new step was made since the last restart
        self.resume_awaited = False
        self._memory = MemoryNews(memory_interval(str(spec.saving.memory_interval)).steps)
        self.last_incident: dict[str, Any] | None = None
        self._abnormal = False  # the newest checkpoint is marked so
        self._incident_at: float | None = None
        self._last_progress = self._noted = time.monotonic()
        # newest step all ranks had completed, in this attempt or, before its resume, in the one before
        self._reached = -1
        self._resumed_step = -1
        self.log("job_started", **self._opening())
        for step in self.home.checkpoints.unfinished:
            self.log("checkpoint_unfinished", step=step)
        self.say(messages.opening(spec, spec.run_dir))

    def _opening(self) -> dict[str, Any]:
        self._reached, beat = self.home.pages.newest_life()  # of a supervisor that was killed
        killed = {"step": self._reached, "ago": round(time.monotonic() - beat, 3)}
        return {
            "job_id": self.spec.job_id,
            "pid": os.getpid(),
            "start_time": process_start_time(os.getpid()),
            "command": [self.spec.launch.target, *masked_args(self.spec.launch.args)],
            "ranks": self.spec.launch.nproc,
            "run_dir": str(self.spec.run_dir),
            "memory_dir": str(self.home.memory_dir),
            "checkpoint_dir": str(self.spec.checkpoint_dir),
            "max_restarts": self.spec.restarts.max_restarts,
            "killed_at": killed if self._reached >= 0 else None,
        }

    def say(self, line: str) -> None:
        """A line on the terminal."""
        self.terminal.say(messages.PREFIX + line)

    def log(self, event: str, **fields: Any) -> None:
        """An event in the journal. A journal that cannot be written is said once; the job goes on."""
        line = self.journal.stamped(event, **fields)
        try:
            self.journal.append(line)
        except OSError as error:
            if not self._journal_broken:
                self._journal_broken = True
                self.say(f"cannot write {self.journal.path}: {error.strerror}; going on without a journal")
        self.notifier.hand(line)

    def notice_outcomes(self) -> None:
        """Tell what became of notices to others."""
        for outcome in self.notifier.outcomes():
            self._notified(outcome)

    def farewell(self) -> None:
        """The last notices go out; waits a few seconds at most."""
        for outcome in self.notifier.close():
            self._notified(outcome)

    def _notified(self, outcome: DeliveryOutcome) -> None:
        fields = {"kind": outcome.kind, "target": outcome.target, "tries": outcome.tries, "seconds": outcome.seconds}
        if not outcome.error:
            self.log("notified", **fields)
            return
        self.log("notify_failed", **fields, error=outcome.error)
        self.say(f"cannot tell {outcome.target} of {outcome.kind}: {outcome.error} ({outcome.tries} tries)")

    # --- attempts -----------------------------------------------------------------------------------------

    def attempt_started(self, gang: RankGroup, attempt: int) -> None:
        """Ranks are running."""
        self.journal.attempt = attempt
        pids = [member.process.pid for member in gang.members.values()]
        self.log("attempt_started", pids=pids, port=gang.port)
        self.resume_awaited = True
        self._resumed_step = -1
        self.progressed = attempt == 0
        followed = {0} if self.spec.launch.tee_ranks is None else self.spec.launch.tee_ranks
        begins = {rank: member.log_from for rank, member in gang.members.items() if rank in followed}
        self.terminal.follow({rank: gang.log(rank) for rank in begins}, begins)

    def rank_restarted(self, rank: int, member: Rank, restarts: int) -> None:
        """One rank was started again, the others going on."""
        self.progressed = False
        self.log("rank_restarted", rank=rank, pid=member.process.pid, restarts=restarts)

    def notice_progress(self, gang: RankGroup, attempt: int, now: float) -> None:
        """Look at the pages for a finished resume and for new steps."""
        if self.resume_awaited:
            self._notice_resume(gang, now)
        self._notice_memory(gang)
        step = gang.least_step()
        if step <= self._resumed_step or self._resumed_step < 0:
            return
        if not self.progressed or self._incident_at is not None:
            self.progressed = True
            if self._incident_at is not None:
                self.log("recovered", step=step, seconds=round(now - self._incident_at, 4))
                self._incident_at = None
        if step > self._reached:
            self._reached, self._last_progress = step, gang.completed_at(step)
            if now - self._noted > _NOTE_PROGRESS:
                self.log("progress", step=step)
                self._noted = now

    def _notice_resume(self, gang: RankGroup, now: float) -> None:
        answers = [page.resumed for rank in gang.members if (page := gang.page(rank)) is not None]
        if len(answers) < self.spec.launch.nproc or any(kind == Resume.UNDECIDED for kind, _ in answers):
            return
        kind, step = answers[0]
        self.resume_awaited = False
        self._resumed_step = step
        lost = max(self._reached - step, 0) if self._reached >= 0 else None
        self._reached, self._last_progress = step, now  # steps made again are progress too
        since = None if self._incident_at is None else now - self._incident_at
        source = RESTORED_FROM.get(kind)
        self.log("resumed", step=step, source=source, steps_lost=lost, seconds=since and round(since, 4))
        if source is not None:
            self.say(messages.resumed(source, step, lost, since))

    def _notice_memory(self, gang: RankGroup) -> None:
        leader = gang.page(0)
        for event, fields, sentence in self._memory.look(leader.memory) if leader is not None else ():
            self.log(event, **fields)
            if sentence:
                self.say(sentence)

    def rank_dying(self, rank: int, signum: int) -> None:
        """A signal has begun to end a rank."""
        self.log("rank_dying", rank=rank, signal=signal_name(signum))

    def notice_dying(self, dying: Mapping[int, float], now: float) -> None:
        """Ranks whose end has begun, and when: told once where the kernel takes its time."""
        slow = {rank: now - since for rank, since in dying.items() if now - since > _SLOW_DEATH}
        for rank in slow.keys() - self._slow_to_die:
            self.say(f"rank {rank} died {slow[rank]:.0f} s ago, and the kernel has not taken it apart yet: waiting")
        self._slow_to_die = set(slow)

    def rank_exited(self, rank: int, member: Rank, page: Page | None) -> None:
        """A rank's process has ended."""
        code = member.process.returncode
        assert code is not None
        signal = signal_name(-code) if code < 0 else None
        step = page.step if page is not None else -1
        self.log("rank_exited", rank=rank, pid=member.process.pid, code=code, signal=signal, step=step)

    # --- incidents ----------------------------------------------------------------------------------------

    def notice_silence(self, suspects: Sequence[Late], views: Sequence[RankView]) -> None:
        """Ranks over half their limit: told once, until all of them make progress again."""
        if suspects and not self._silent:
            late = of_laggard(suspects, views)
            self.log("hang_suspected", rank=late.rank, step=late.step, age=round(late.age, 3), limit=late.limit)
        self._silent = bool(suspects)

    def slow_rank(self, news: StragglerNews) -> None:
        """A rank that the others wait for at every step, or no more."""
        took = {"own": round(news.own, 6), "others": round(news.others, 6), "step_seconds": round(news.step, 6)}
        event = "rank_slow" if news.slow else "rank_slow_over"
        self.log(event, rank=news.rank, **took, sentence=news.sentence)
        self.say(news.sentence)

    def hang_seen(self, late: Late) -> None:
        """A rank is over its limit; the autopsy begins."""
        self.terminal.cut()
        told = {"rank": late.rank, "step": late.step, "age": round(late.age, 3), "limit": late.limit}
        self.log("hang_seen", rule=late.rule, **told)
        self.say(
            f"{measured(late)}: an autopsy of all ranks goes to"
            f" {self.spec.run_dir / 'autopsy' / f'attempt_{self.journal.attempt}'}"
        )

    def newest_step(self, gang: RankGroup) -> int:
        """The newest step all ranks had completed, in this attempt or the one before."""
        return max(self._reached, gang.least_step())

    def incident(
        self, cause: failure_diagnosis.Cause, verdict: Verdict, gang: RankGroup, autopsy: str | None = None
    ) -> None:
        """A failure and what was decided; autopsy: where that of a hang lies."""
        self.last_incident = {"sentence": verdict.sentence, "autopsy": autopsy}
        now = time.monotonic()
        step = gang.least_step()
        if step > self._reached:
            self._reached, self._last_progress = step, gang.completed_at(step)
        idle = round(now - self._last_progress, 4)
        if self._incident_at is None:
            self._incident_at = now
        self.log(
            "incident",
            cause=cause.sentence,
            kind=cause.kind,
            rank=cause.rank,
            signature=cause.signature,
            step=cause.step if cause.kind == "hang" else self._reached,
            verdict="restart" if verdict.restart else "give up",
            delay=round(verdict.delay, 3),
            sentence=verdict.sentence,
            action=cause.action,
            restarts_left=verdict.budget.left,
            hang_restarts_left=verdict.budget.hangs_left,
            since_progress=idle,
            trace=cause.trace,
            autopsy=autopsy,
        )
        if verdict.restart:
            followed = {0} if self.spec.launch.tee_ranks is None else self.spec.launch.tee_ranks
            if cause.rank not in followed:
                for line in messages.excerpt(cause.rank, cause.trace):
                    self.terminal.say(line)
            self.say(verdict.sentence)

    def unsound(self, finding: NumericFault) -> None:
        """Something is wrong with the numbers; where it ends the attempt, an incident follows."""
        value = None if finding.value is None else f"{finding.value:.9g}"  # JSON has no NaN
        self.log(
            "unsound",
            kind=finding.kind,
            act=finding.act,
            rank=finding.rank,
            step=finding.step,
            value=value,
            part=finding.part or None,
            sentence=finding.sentence,
        )
        if finding.act == "warn":
            self.say(f"{finding.sentence}; going on (on_{finding.kind}: warn)")

    def went_back(self, step: int, aside: str) -> None:
        """It is decided where a job goes on that had gone wrong."""
        self.log("rolled_back", step=step if step >= 0 else None, aside=aside or None)
        where = f"to step {step}" if step >= 0 else "to the beginning: there was no checkpoint yet"
        self.say(f"going back {where}" + (f"; later checkpoints are now in {aside}" if aside else ""))

    def killing(self, gang: RankGroup, why: str) -> None:
        """SIGKILL goes out; why: where that is before the grace is over."""
        alive = [rank for rank, member in gang.members.items() if member.process.returncode is None]
        if alive:
            self.log("ranks_killed", ranks=alive, why=why or None)
            if why:
                self.say(why)

    # --- stopping and saving --------------------------------------------------------------------------------

    def stop_requested(self, reason: str) -> None:
        """Somebody asked to stop."""
        self.log("stop_requested", by=reason)
        self.say(f"stopping: {reason}")

    def stop_announced(self, step: int, front: int) -> None:
        """The ranks know where to stop."""
        self.log("stop_announced", step=step, front=front)

    def saved(self, answer: dict[str, Any]) -> None:
        """A save has ended, well or badly."""
        step, why = answer["step"], answer.get("why")
        if "error" in answer:
            self.log("checkpoint_failed", step=step, why=why, error=answer["error"])
            self.say(f"cannot save step {step} to {self.spec.checkpoint_dir}: {answer['error']}")
            return
        self.log(
            "checkpoint_committed",
            step=step,
            why=why,
            bytes=answer["bytes"],
            seconds=answer["seconds"],
            health=answer["health"]["status"],
            path=answer["path"],
        )
        abnormal = answer["health"]["status"] == health_mark.ABNORMAL
        if abnormal and not self._abnormal:  # of several in a row the first is said
            self.say(f"the checkpoint of step {step} is marked abnormal: {answer['health']['why']}")
        self._abnormal = abnormal
        for old in answer["deleted"]:
            self.log("checkpoint_deleted", step=old, keep=self.spec.saving.keep)
        for note in answer["notes"]:
            self.say(note)
        if why != "interval":
            self.say(f"saved step {step} ({size(answer['bytes'])}) to {answer['path']}")

    def saver_died(self, answer: dict[str, Any]) -> None:
        """The saver is gone and was started again."""
        pending = answer["request"]
        doing = f" while saving step {pending['step']}: trying that again" if pending and "step" in pending else ""
        self.log("saver_died", status=answer["status"], step=pending.get("step") if pending else None)
        self.say(f"the saver died (exit status {answer['status']}){doing}")

    def saver_missing(self, error: OSError) -> None:
        """The saver is gone, and none can be started."""
        self.log("saver_missing", why=error.strerror)
        self.say(
            f"the saver died, and another cannot be started ({error.strerror}): training goes on, checkpoints wait;"
            " trying again every second"
        )

    def rejected(self, rejected: Sequence[dict[str, Any]], step: int) -> None:
        """Checkpoints that were refused on the way to the one resumed from."""
        for entry in rejected:
            cost = entry["step"] - step if step >= 0 else None
            self.log("checkpoint_rejected", step=entry["step"], why=entry["why"], to=entry["to"], steps_lost=cost)
            self.say(
                f"checkpoint of step {entry['step']} refused: {entry['why']}; it is now {entry['to']}"
                + (f"; the next usable one is {cost} steps older" if cost is not None else "")
            )

    def beginning(self, load: InitialCheckpoint, step: int) -> None:
        """A job without anything of its own begins with a checkpoint of another."""
        self.log("loaded", step=step, path=str(load.path), weights_only=load.weights_only)
        self.say(initial.beginning(load, step))

    # --- the end --------------------------------------------------------------------------------------------

    def ended(self, runner: Supervisor, code: int) -> None:
        """The last lines, the last event, and report.json."""
        committed = runner.saving.committed
        if runner.state is JobState.DONE:
            self.log("job_finished", code=code, restarts=runner.budget.restarts)
            self.say(f"done; {messages.spent(runner.budget)}")
        elif runner.state is JobState.STOPPED:
            self.log("job_stopped", code=code, step=committed)
            where = f"the same command goes on from step {committed}" if committed >= 0 else "there was nothing to save"
            self.say(f"stopped; {where} (exit code {code})")
        else:
            self._failed(runner, code)
        summary = {
            "job_id": self.spec.job_id,
            "state": runner.state.value,
            "code": code,
            "committed": committed,
        }
        report = self.spec.run_dir / "report.json"
        try:
            atomic.replace_durable(report, json.dumps(summary, indent=1).encode() + b"\n")
        except OSError as error:
            self.say(f"cannot write {report}: {error.strerror}")

    def _failed(self, runner: Supervisor, code: int) -> None:
        cause, verdict, unsaved = runner.cause, runner.verdict, runner.last_save.error
        sentence = unsaved or (verdict.sentence if verdict else "")
        self.log("job_failed", code=code, cause=cause.sentence if cause else None, sentence=sentence)
        if unsaved:
            self.say(f"the last snapshot could not be saved: {unsaved}; it stays in {self.home.memory_dir}")
        if cause is None or verdict is None:
            return
        committed = runner.saving.committed
        state = f"step {committed} is in {self.spec.checkpoint_dir}" if committed >= 0 else "nothing was saved"
        logs = self.spec.log_dir / f"attempt_{runner.attempt}"
        for line in messages.failure(cause, verdict.budget, verdict.sentence, logs, state):
            self.terminal.say(line)
