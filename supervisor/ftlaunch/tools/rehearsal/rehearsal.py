"""Runs a user's job several times, breaks something in each run, and compares the result with an undisturbed run.

Each run is an `ftlaunch` process of its own with a run dir of its own, and ends with the checkpoint of the same step.
Nothing is simulated: ranks are really killed, and files really cannot be written. `ftctl rehearse` calls the methods of
`Rehearsal` one after another on its main thread, `undisturbed` first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from ftlaunch.spec.job_spec import LOADED, JobSpec
from ftlaunch.spec.parsers import StorageInterval
from ftlaunch.tools.rehearsal.checkpoint_diff import Likeness, compare
from ftlaunch.tools.rehearsal.pauses import Pause, StepTimes
from ftlaunch.tools.rehearsal.trial import FAST_POLL_SECONDS, Trial, TrialError
from ftlaunch_contract.checkpoint import tensor_file
from ftlaunch_contract.progress import Advance
from ftlaunch_contract.protocol import EXIT_SAVED, Phase

_HANG_FACTOR = 10.0  # hang timeout of disturbed runs, in lengths of the longest undisturbed step
_MIN_HANG_SECONDS = 5.0
_PROOF_SECONDS = 2.0  # time for a job to report what repeated steps have shown, after they were made


Watched = Callable[[str, int, str], contextlib.AbstractContextManager[Advance]]
"""Context manager around each run, from the fault, the number of steps and `steps`; yields a progress function."""


Moment = Callable[[Trial], bool]
"""Returns whether the moment has come to break something in a running trial."""
PROOFS = ("resume_verified", "resume_unverified", "resume_differs")


class CannotRehearse(Exception):
    """The job does not finish even undisturbed; the message says why."""


@dataclass(frozen=True)
class RehearsalOutcome:
    """The outcome of one run."""

    fault: str  # name of the fault
    seconds: float  # length of the run
    survived: bool
    steps_lost: int = 0
    back_after: float | None = None  # seconds from the fault to the next new step
    likeness: Likeness | None = None  # differences from the undisturbed run at the last step
    trouble: str = ""  # why the job did not survive
    struck_at: int | None = None  # newest step that all ranks had completed when a rank was killed
    phase: str = ""  # phase of the killed rank
    proof: str = ""  # what repeated steps have shown: same, rounded, different, unverified; empty for nothing
    proof_sentence: str = ""  # the proof in words

    @property
    def good(self) -> bool:
        """Whether the job survived, and its state equals that of the undisturbed run."""
        return self.survived and (self.likeness is None or self.likeness.equal) and self.proof != "different"


class Rehearsal:
    """All runs of one job."""

    def __init__(self, spec: JobSpec, home: Path, steps: int, limit: float, watched: Watched) -> None:
        """Prepare a rehearsal; nothing runs yet.

        Args:
            spec: the job.
            home: a private folder for all runs.
            steps: steps of each run.
            limit: longest time of a run in seconds.
            watched: shows the progress of each run.
        """
        self.spec = spec
        self.home = home
        self.steps = steps
        self.limit = limit
        self._watched = watched
        self._hang_timeout: float | None = None
        self._undisturbed: Path | None = None
        self.varying: tuple[str, ...] | None = None
        """places at which two undisturbed runs differ; None before a second undisturbed run was needed"""
        self.deterministic = True
        self.pause: Pause | None = None
        """longest pause between two steps of the undisturbed run; None if there was none"""

    def undisturbed(self) -> RehearsalOutcome:
        """Make the run that all others are compared with.

        Raises:
            CannotRehearse: the job does not reach the last step.
        """
        outcome, self._undisturbed = self._run_undisturbed("undisturbed")
        return outcome

    def _run_undisturbed(self, name: str) -> tuple[RehearsalOutcome, Path]:
        """Make a run in which nothing is broken. Return its outcome and the path of its checkpoint."""
        with self._watched(name, self.steps, "steps") as advance, self._trial(name, advance) as trial:
            times = StepTimes()

            def is_over() -> bool:
                if (front := trial.front()) is not None:
                    times.note(front[0], front[1].name.lower(), time.monotonic())
                return trial.committed(self.steps) or trial.unattached(self.steps)

            trial.start()
            there = trial.wait(is_over)
            self.pause = self.pause or times.longest_pause(self.steps)
            if trial.unattached(self.steps):
                raise CannotRehearse(
                    "the script does not attach(): it would be restarted, and begin again at step 0 unless it saves and"
                    " loads by itself; with the two lines of the README it goes on from the step it had reached"
                )
            if not there:
                raise CannotRehearse(f"{trial.what_happened()}; see {trial.spec.run_dir}")
            self._hang_timeout = max(_MIN_HANG_SECONDS, _HANG_FACTOR * trial.longest_step)
            return RehearsalOutcome(name, trial.seconds, True), trial.checkpoint(self.steps)

    def _without_varying(self, likeness: Likeness) -> Likeness:
        """Drop differences that two undisturbed runs show as well.

        The first call with a difference makes the second undisturbed run.
        """
        if likeness.equal:
            return likeness
        if self.varying is None:
            assert self._undisturbed is not None
            _, second = self._run_undisturbed("undisturbed again")
            found = compare(self._undisturbed, second)
            self.varying = found.places
            self.deterministic = found.without(found.places).equal
        return likeness.without(self.varying)

    def kill(self) -> RehearsalOutcome:
        """Send SIGKILL to the last rank, as the kernel does for lack of memory."""
        return self._disturbed("a rank is killed", lambda trial: os.kill(trial.pids()[-1], signal.SIGKILL))

    def kill_in_first_step(self) -> RehearsalOutcome:
        """Send SIGKILL to the last rank as soon as all ranks have attached."""
        return self._killed("killed in step 1", lambda trial: trial.front() is not None)

    def kill_in_last_step(self) -> RehearsalOutcome:
        """Send SIGKILL to the last rank once one step is left."""
        return self._killed("killed in last step", lambda trial: self._is_at(trial, self.steps - 1))

    def kill_at_pause(self, pause: Pause) -> RehearsalOutcome:
        """Send SIGKILL to the last rank as a pause begins, for example after the last batch of an epoch."""
        return self._killed("killed at a pause", lambda trial: self._is_at(trial, pause.step))

    def kill_in_pause(self, pause: Pause) -> RehearsalOutcome:
        """Send SIGKILL to the last rank in the middle of a pause."""
        begun: list[float] = []

        def is_in_the_middle(trial: Trial) -> bool:
            if self._is_at(trial, pause.step):
                begun.append(time.monotonic())
            return bool(begun) and time.monotonic() - begun[0] >= pause.seconds / 2

        return self._killed("killed in the pause", is_in_the_middle)

    @staticmethod
    def _is_at(trial: Trial, step: int) -> bool:
        front = trial.front()
        return front is not None and front[0] >= step

    def _killed(self, fault: str, moment: Moment) -> RehearsalOutcome:
        """Make a run whose last rank is killed as soon as `moment` returns True."""
        seen: list[tuple[int, str]] = []

        def strike(trial: Trial) -> None:
            pid = trial.pids()[-1]
            if not trial.wait(lambda: moment(trial), FAST_POLL_SECONDS):
                raise TrialError(f"the moment for it did not come: {trial.what_happened()}")
            step, phase = trial.front() or (0, Phase.TRAIN)
            os.kill(pid, signal.SIGKILL)
            seen.append((step, phase.name.lower()))

        outcome = self._disturbed(fault, strike, ready=lambda trial: bool(trial.status().get("ranks")))
        return replace(outcome, struck_at=seen[0][0], phase=seen[0][1]) if seen else outcome

    def freeze(self) -> RehearsalOutcome:
        """Send SIGSTOP to the last rank, which then lives and makes no step."""
        return self._disturbed("a rank is frozen", lambda trial: os.kill(trial.pids()[-1], signal.SIGSTOP))

    def preempt(self) -> RehearsalOutcome:
        """Send SIGTERM to the supervisor, as a scheduler does, then run the same command again."""

        def fault(trial: Trial) -> None:
            code = trial.stop()
            if code != EXIT_SAVED:
                raise TrialError(f"told to stop it ended with exit code {code}, not {EXIT_SAVED}")
            trial.start()

        return self._disturbed("the job is preempted", fault)

    def full_disk(self) -> RehearsalOutcome:
        """Let the saver write nothing (a limit of 0 on file sizes) until a save has failed."""

        def fault(trial: Trial) -> None:
            saver = trial.saver()
            before = saver.rlimit(psutil.RLIMIT_FSIZE)
            saver.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
            try:
                if not trial.wait(lambda: bool(trial.events("checkpoint_failed"))):
                    raise TrialError(f"no save has failed: {trial.what_happened()}")
            finally:
                with contextlib.suppress(psutil.NoSuchProcess):
                    saver.rlimit(psutil.RLIMIT_FSIZE, before)

        return self._disturbed("storage is full", fault, saves=2)

    def _disturbed(
        self, fault: str, strike: Callable[[Trial], None], saves: int = 1, ready: Moment | None = None
    ) -> RehearsalOutcome:
        """Make a run in which `strike` breaks something.

        Args:
            fault: name of the fault.
            strike: breaks something in the running trial; may raise TrialError.
            saves: number of checkpoints of the run.
            ready: returns whether to call `strike` now; None to call it after a third of the steps.
        """
        assert self._undisturbed is not None
        at = max(self.steps // 3, 1)
        is_ready = ready or (lambda trial: trial.step() >= at)
        with self._watched(fault, self.steps, "steps") as advance, self._trial(fault, advance, saves) as trial:
            trial.start()
            try:
                if not trial.wait(lambda: is_ready(trial)):
                    raise TrialError(f"it did not come to step {at if ready is None else 1}: {trial.what_happened()}")
                strike(trial)
                struck = time.monotonic()
                if not trial.wait(lambda: trial.committed(self.steps)):
                    raise TrialError(trial.what_happened())
                likeness = compare(self._undisturbed, trial.checkpoint(self.steps))
            except (TrialError, psutil.NoSuchProcess, tensor_file.Damaged) as trouble:
                return RehearsalOutcome(fault, trial.seconds, False, trouble=str(trouble))
            deadline = time.monotonic() + _PROOF_SECONDS
            trial.wait(lambda: _is_proven(trial) or time.monotonic() > deadline)
            lost = sum(event.get("steps_lost") or 0 for event in trial.events("resumed"))
            back = [event["mono"] - struck for event in trial.events("recovered", "resumed")]
            after = max((seconds for seconds in back if seconds > 0), default=None)
            seconds = trial.seconds
            proof, sentence = _proof(trial)
        likeness = self._without_varying(likeness)
        return RehearsalOutcome(
            fault=fault,
            seconds=seconds,
            survived=True,
            steps_lost=lost,
            back_after=after,
            likeness=likeness,
            proof=proof,
            proof_sentence=sentence,
        )

    def _trial(self, name: str, advance: Advance, saves: int = 1) -> Trial:
        """Prepare a run with files of its own, and without notices, report page, metrics and traces."""
        name = name.replace(" ", "-")
        run_dir = self.home / name
        interval = StorageInterval(max(self.steps // saves, 1), None)
        load = self.spec.saving.load_checkpoint
        if load is not None and self.spec.saving.load_address is not None:
            load = run_dir / LOADED / load.name
        limits = self.spec.limits
        if self._hang_timeout is not None:
            limits = replace(limits, hang_timeout=self._hang_timeout)
        spec = replace(
            self.spec,
            job_id=f"rehearsal-{os.getpid()}-{name}",
            run_dir=run_dir,
            log_dir=run_dir / "logs",
            checkpoint_dir=run_dir / "checkpoints",
            notify=(),
            report_page=False,
            metrics=None,
            traces=None,
            saving=replace(
                self.spec.saving,
                storage_interval=interval,
                keep=saves + 1,
                checkpoint_store=None,
                load_checkpoint=load,
            ),
            restarts=replace(self.spec.restarts, backoff_first=0.0),
            limits=limits,
        )
        return Trial(spec, self.limit, advance)


def _proof(trial: Trial) -> tuple[str, str]:
    """Return what repeated steps have shown about the trial's last resume, as a word and as a sentence."""
    proofs = trial.events(*PROOFS)
    if not proofs:
        return "", ""
    newest = proofs[-1]
    words = {"resume_differs": "different", "resume_unverified": "unverified"}
    return words.get(newest["event"]) or str(newest.get("answer", "same")), str(newest.get("sentence", ""))


def _is_proven(trial: Trial) -> bool:
    """Return whether every resume of the trial has a proof; ranks that record no fingerprints never give one."""
    resumes = [event for event in trial.events("resumed") if event.get("source")]
    return len(trial.events(*PROOFS)) >= len(resumes)
