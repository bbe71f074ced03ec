"""Events about the job as a whole: its start and end, requests, delivered notices, and outlets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.common.masking import masked_args
from ftlaunch.notify.client import DeliveryOutcome
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.policy.restart_policy import Budget, Verdict
from ftlaunch.policy.states import JobState
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.systemd import Priority
from ftlaunch_contract.protocol import EXIT_SAVED, EXIT_STOPPED


@dataclass(frozen=True)
class JobStarted(JobEvent):
    """A supervisor has taken up a job."""

    name = "job_started"
    spec: JobSpec
    memory_dir: Path
    pid: int
    start_time: int
    killed_at: tuple[int, float] | None
    """newest step of a killed supervisor's ranks, and seconds since their newest beat; None: none was killed"""
    host: str
    """the machine of the supervisor; of several nodes, the machine that answers `ftctl`"""
    stop_command: str | None = None
    """the command that stops a job for good if a service manager starts the job again after each end"""
    jobset_restart: int | None = None
    """how often JobSet has restarted the job; None: the job does not run under JobSet"""

    def fields(self) -> dict[str, Any]:
        """Return the job as the user has asked for it, with secrets masked."""
        spec = self.spec
        killed = self.killed_at
        restarts = spec.restarts.max_restarts
        apart = spec.restarts.max_hang_restarts
        return {
            "job_id": spec.job_id,
            "pid": self.pid,
            "start_time": self.start_time,
            "host": self.host,
            "command": [spec.launch.target, *masked_args(spec.launch.args)],
            "ranks": spec.launch.nproc,
            "run_dir": str(spec.run_dir),
            "log_dir": str(spec.log_dir),
            "memory_dir": str(self.memory_dir),
            "checkpoint_dir": str(spec.checkpoint_dir),
            "max_restarts": restarts,
            "max_hang_restarts": restarts if apart is None else apart,
            "stop_command": self.stop_command,
            "jobset_restart": self.jobset_restart,
            "killed_at": None if killed is None else {"step": killed[0], "ago": round(killed[1], 3)},
        }


@dataclass(frozen=True)
class StopRequested(JobEvent):
    """Somebody asked the job to stop."""

    name = "stop_requested"
    reason: str

    def fields(self) -> dict[str, Any]:
        """Return who asked."""
        return {"by": self.reason}

    def sentence(self) -> str:
        """Return who asked."""
        return f"stopping: {self.reason}"


@dataclass(frozen=True)
class SaveRequested(JobEvent):
    """Somebody asked for a checkpoint now."""

    name = "save_requested"
    reason: str

    def fields(self) -> dict[str, Any]:
        """Return who asked."""
        return {"by": self.reason}

    def sentence(self) -> str:
        """Return who asked."""
        return f"a checkpoint is asked for: {self.reason}"


@dataclass(frozen=True)
class DrainRequested(JobEvent):
    """Somebody asked that a node leaves the job, and it will."""

    name = "drain_requested"
    node: str
    reason: str

    def fields(self) -> dict[str, Any]:
        """Return the node, by its place or its host, and who asked."""
        return {"node": self.node, "by": self.reason}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return f"node {self.node} is to leave: {self.reason}"


@dataclass(frozen=True)
class StopAnnounced(JobEvent):
    """The ranks know at which step they are to stop."""

    name = "stop_announced"
    step: int
    front: int
    """the newest step that any rank had completed at the announcement"""

    def fields(self) -> dict[str, Any]:
        """Return both steps."""
        return {"step": self.step, "front": self.front}


@dataclass(frozen=True)
class Notified(JobEvent):
    """A notice was delivered."""

    name = "notified"
    outcome: DeliveryOutcome

    def fields(self) -> dict[str, Any]:
        """Return the kind of the event, the target, the tries, and the seconds until the delivery."""
        outcome = self.outcome
        return {
            "kind": outcome.kind,
            "target": outcome.target,
            "tries": outcome.tries,
            "seconds": outcome.seconds,
        }


@dataclass(frozen=True)
class NotifyFailed(Notified):
    """A notice could not be delivered."""

    name = "notify_failed"
    priority = Priority.WARNING

    def fields(self) -> dict[str, Any]:
        """Return the kind of the event, the target, the tries, the seconds, and the error."""
        return {**super().fields(), "error": self.outcome.error}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        outcome = self.outcome
        return f"cannot tell {outcome.target} of {outcome.kind}: {outcome.error} ({outcome.tries} tries)"


@dataclass(frozen=True)
class MetricsServed(JobEvent):
    """Metrics are to be had at an address."""

    name = "metrics_served"
    url: str

    def fields(self) -> dict[str, Any]:
        """Return the address."""
        return {"url": self.url}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        return f"metrics are at {self.url}"


@dataclass(frozen=True)
class OutletEnded(JobEvent):
    """The process that tells metrics or traces has ended; the job goes on."""

    name = "outlet_ended"
    priority = Priority.WARNING
    what: str
    """what the process tells: metrics, traces or progress"""
    why: str
    restart_seconds: float | None
    """seconds until the process is started again; None: it is not"""

    def fields(self) -> dict[str, Any]:
        """Return what the process tells, why it has ended, and the seconds until it is started again."""
        return {"what": self.what, "why": self.why, "again": self.restart_seconds}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        delay = self.restart_seconds
        then = "there are none from now on" if delay is None else f"trying again in {duration(delay)}"
        return f"cannot tell {self.what}: {self.why}; {then}, and the job goes on"


@dataclass(frozen=True)
class JobEnded(JobEvent):
    """The job is over; `report.json` says the same."""

    spec: JobSpec
    state: JobState
    code: int
    committed: int
    """the newest step on storage, or -1"""
    budget: Budget


@dataclass(frozen=True)
class JobFinished(JobEnded):
    """All ranks have done their work."""

    name = "job_finished"
    complete_since: str
    """when the job's last step was committed, if this run had nothing left to train; else empty"""

    def fields(self) -> dict[str, Any]:
        """Return the exit code, and how many restarts the job took."""
        return {"code": self.code, "restarts": self.budget.restarts}

    def sentence(self) -> str:
        """Return how many restarts the job took; or that nothing was left to train, and how to begin anew."""
        if not self.complete_since:
            return f"done; {messages.spent(self.budget)}"
        return messages.complete(self.committed, self.complete_since, self.spec.checkpoint_dir)


@dataclass(frozen=True)
class JobStopped(JobEnded):
    """The job has stopped because it was asked to."""

    name = "job_stopped"

    def fields(self) -> dict[str, Any]:
        """Return the exit code, and the step from which the same command goes on."""
        return {"code": self.code, "step": self.committed}

    def sentence(self) -> str:
        """Return the event as a sentence for the terminal."""
        step = self.committed
        where = f"the same command goes on from step {step}" if step >= 0 else "there was nothing to save"
        if step < 0 and self.code == EXIT_SAVED:
            where = "storage has no step"
        if self.code not in (EXIT_SAVED, EXIT_STOPPED):
            where = "another machine goes on with the job"
        return f"stopped; {where} (exit code {self.code})"


@dataclass(frozen=True)
class JobFailed(JobEnded):
    """The job was given up, or its last snapshot could not be saved."""

    name = "job_failed"
    priority = Priority.ERROR
    cause: Cause | None
    verdict: Verdict | None
    unsaved: str
    """why the last snapshot could not be saved; empty if it was saved"""
    attempt: int

    def fields(self) -> dict[str, Any]:
        """Return the exit code, the cause, and the verdict."""
        reason = self.unsaved or (self.verdict.sentence if self.verdict else "")
        return {"code": self.code, "cause": self.cause.sentence if self.cause else None, "sentence": reason}

    def lines(self) -> Sequence[str]:
        """Return the last screen: what failed, what was tried, where the state and the logs are."""
        if self.cause is None or self.verdict is None:
            return ()
        saved = f"step {self.committed} is in {self.spec.checkpoint_dir}"
        state = saved if self.committed >= 0 else "nothing was saved"
        return messages.failure(
            cause=self.cause,
            budget=self.verdict.budget,
            sentence=self.verdict.sentence,
            logs=self.spec.log_dir / f"attempt_{self.attempt}",
            report=state,
            run_dir=self.spec.run_dir,
        )


@dataclass(frozen=True)
class StartRefused(JobEvent):
    """The supervisor could not start what it needs: the journal ends with the reason."""

    name = "job_failed"
    priority = Priority.ERROR
    code: int
    reason: str

    def fields(self) -> dict[str, Any]:
        """Return the exit code and the reason."""
        return {"code": self.code, "cause": None, "sentence": self.reason}
