"""Verifies a Job's resumes: notes fingerprints of steps, and lets a rank make one more step after a stop.

A rank that is told to stop may make one step more than is saved. The next run makes this step again and compares. The
Job calls a ResumeVerification in the thread that trains; a timer's thread ends the process if the step takes too long.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from torch import Tensor

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.observe.proof.step_proof import StepProof
from ftlaunch_hooks.process.say import say

_CHEAP_STEP_SECONDS = 1.0
"""longest step for which a step after a stop is made without being asked for"""
_PATIENCE_STEPS = 4.0
"""time limit of the step after a stop, in times of a step: an evaluation may come in between"""
_LEAST_PATIENCE_SECONDS = 0.5
"""smallest time limit of the step after a stop"""
_COPY_SECONDS = 2.0
"""time for which a rank that ends waits until storage has its fingerprints"""
_PART_NAMES = {
    ProofPart.BATCH: "another batch",
    ProofPart.RANDOM: "other random numbers",
    ProofPart.RATES: "another learning rate",
    ProofPart.LOSS: "another loss",
    ProofPart.PARAMETER: "another value",
    ProofPart.OBJECT: "another state",
}


class ResumeVerification:
    """The verification of one rank's resumes, over all trainings of the process."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Read the settings. `begin` follows once the state is restored."""
        self._coordinator = coordinator
        self._page = coordinator.page
        self._mode = os.environ.get(protocol.ENV_VERIFY_RESUME, "auto")
        self._copy = layout.fingerprints_path(coordinator.checkpoint_dir, coordinator.rank)
        self._proof: StepProof | None = None
        self._resumed_step = 0
        """the step at which the newest proof has begun"""
        self._writer: threading.Thread | None = None
        """copies the fingerprints to storage"""
        self._copy_is_due = False
        """whether to copy the fingerprints after the next step"""
        self._stop: Callable[[], None] | None = None
        """ends this process; set while the step after a stop is awaited"""
        self._timer: threading.Timer | None = None
        self._leaving = threading.Lock()
        """held by the thread that ends this process"""

    def begin(
        self,
        objects: Mapping[str, Any],
        step: int,
        kind: Resume,
        *,
        is_comparable: bool,
        restored_otherwise: Sequence[str] = (),
    ) -> None:
        """Begin to note fingerprints of a training. If the ring cannot be made, log a sentence and verify nothing.

        Args:
            objects: attached objects by name.
            step: number of completed steps.
            kind: where the state came from.
            is_comparable: False if the following steps are meant to differ from those before.
            restored_otherwise: names of the attached objects, or PLACE_IN_LOOPS, whose restored state differs from the
                saved state.
        """
        if self._proof is not None:
            self._proof.close()
        try:
            self._proof = StepProof(
                objects,
                page=self._page,
                directory=self._coordinator.memory_dir,
                rank=self._coordinator.rank,
                on_end=self._log_verdict,
            )
        except OSError as error:
            self._proof = None
            say(f"cannot note fingerprints of steps: {error}; a resume of this rank will not be verified")
            return
        self._resumed_step = step
        self._proof.begin(
            step, kind=kind, copy=self._copy, is_comparable=is_comparable, restored_otherwise=restored_otherwise
        )

    def _log_verdict(self, proof: Proof, name: str) -> None:
        """Write a difference to this rank's log. Without a supervisor, write the other verdicts, too.

        Args:
            proof: the proof, which has ended.
            name: name of the parameter or object that differs; empty if neither does.
        """
        is_alone = not self._coordinator.is_supervised
        rank = self._coordinator.rank
        if proof.verdict is ProofVerdict.DIFFERENT:
            say(f"{self._describe_difference(proof, name)}: this run is not exact from step {proof.step} on")
        elif proof.verdict is ProofVerdict.ROUNDED and is_alone:
            say(
                f"{self._describe_difference(proof, name)}, within rounding: kernels that are not deterministic, or"
                " another number of threads"
            )
        elif proof.verdict is ProofVerdict.SAME and is_alone and rank == 0:
            steps = "1 step" if proof.steps == 1 else f"{proof.steps} steps"
            say(f"the resume is verified: {steps} made again were the same, up to step {proof.step}")

    def _describe_difference(self, proof: Proof, name: str) -> str:
        """Return a clause that says which rank differs and in what."""
        done = f"restored step {proof.step}" if proof.step == self._resumed_step else f"made step {proof.step} again"
        of = f" of `{name}`" if name else ""
        numbers = "" if math.isnan(proof.now) else f" ({proof.before!r} before, {proof.now!r} now)"
        return f"rank {self._coordinator.rank} has {done} with {_PART_NAMES[proof.what]}{of}{numbers}"

    def check_random_numbers(self) -> None:
        """Compare the generators with those of the restored step. Call this once they were put back."""
        if self._proof is not None:
            self._proof.check_random_numbers()

    # --- step by step -----------------------------------------------------------------------------------------

    def note_loss(self, loss: float) -> None:
        """Note a loss of the step under way."""
        if self._proof is not None:
            self._proof.note_loss(loss)

    def note_batch(self, sample: Tensor) -> None:
        """Note a batch of the step under way. sample: a few values of the batch."""
        if self._proof is not None:
            self._proof.note_batch(sample)

    def end_step(self, step: int) -> None:
        """Note a complete step. Ends this process if the step was made after a stop."""
        if self._proof is not None:
            self._proof.end_step(step, in_full=self._copy_is_due or self._stop is not None)
            if self._copy_is_due:
                self._copy_is_due = False
                self._start_copy(self._proof)
        if self._stop is not None:
            self._leave_with_copy(self._stop)

    def note_snapshot(self, step: int) -> None:
        """Complete the fingerprint of `step` before its snapshot is taken."""
        if self._proof is not None:
            self._proof.note_snapshot(step)

    # --- for the next run -------------------------------------------------------------------------------------

    def leave_copy_at_next_step(self) -> None:
        """Copy the fingerprints to the checkpoints after the next step, because the newest step becomes a checkpoint.

        The copy then has the fingerprint of a step that the next run will make again.
        """
        self._copy_is_due = self._proof is not None

    def _start_copy(self, proof: StepProof) -> None:
        """Copy the fingerprints in a thread, unless a supervisor's saver does.

        A rank could not be killed during a write that storage holds up.
        """
        if self._coordinator.is_supervised:
            return
        if self._writer is None or not self._writer.is_alive():
            self._writer = proof.leave_copy(self._copy)

    def should_make_another_step(self) -> bool:
        """Return whether this rank makes one step after a stop, which the next run will make again.

        All ranks of a node come to the same answer, unless the time of a step is just at the limit. Ranks of several
        nodes do not know of each other, and make the step only if the user asks for it.
        """
        if self._proof is None or self._mode == "off":
            return False
        if self._mode == "on":
            return True
        step_seconds = self._coordinator.peers[0].step_seconds
        deadline_ns = self._page.deadline_ns
        left_seconds = (deadline_ns - time.monotonic_ns()) / 1e9 if deadline_ns else math.inf
        is_cheap = 0.0 < step_seconds <= min(_CHEAP_STEP_SECONDS, left_seconds / (4 * _PATIENCE_STEPS))
        return is_cheap and self._coordinator.node.whole_job

    def make_another_step(self, stop: Callable[[], None]) -> None:
        """Let the script make one more step, and call `stop` afterwards. If the step takes too long, leave without it.

        The snapshot at which the job stops must be complete and held for the saver before this call.

        Args:
            stop: ends this process.
        """
        self._stop = stop
        if self._proof is not None:
            self._proof.await_step(self._page.step + 1)
        patience_seconds = max(_PATIENCE_STEPS * self._page.step_seconds, _LEAST_PATIENCE_SECONDS)
        self._timer = threading.Timer(patience_seconds, self._leave_at_once)
        self._timer.daemon = True
        self._timer.start()

    def cancel_stop(self) -> None:
        """Await no step after a stop, because the training has ended at the saved step, or the step is made."""
        if self._timer is not None:
            self._timer.cancel()
        if self._proof is not None:
            self._proof.await_step(0)
        self._stop = None

    @property
    def is_stopping(self) -> bool:
        """Whether the step after a stop is awaited."""
        return self._stop is not None

    def leave_if_stopping(self) -> None:
        """End this process at once if the step after a stop is awaited. Call this as the interpreter ends."""
        if self._stop is not None:
            self._leave_at_once()

    def _leave_with_copy(self, stop: Callable[[], None]) -> None:
        """Copy the fingerprints, and end this process, after the step that follows a stop."""
        if not self._leaving.acquire(blocking=False):
            threading.Event().wait()  # the timer's thread ends this process
        self.cancel_stop()
        if self._proof is not None:
            self._start_copy(self._proof)
        if self._writer is not None:
            self._writer.join(_COPY_SECONDS)
        stop()

    def _leave_at_once(self) -> NoReturn:
        """End this process without the step after a stop. Runs in the timer's thread, or as the interpreter ends."""
        if not self._leaving.acquire(blocking=False):
            threading.Event().wait()  # the main thread ends this process
        if self._proof is not None:
            self._proof.await_step(0)
        self._page.raise_flag(protocol.Flag.STOPPED)
        self._page.phase = protocol.Phase.TEARDOWN
        self._coordinator.leave_at_once()
