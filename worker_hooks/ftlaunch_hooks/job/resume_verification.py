"""What a Job does to prove its resumes: fingerprints of steps, and the step that is made behind a stop."""

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
"""a step behind a stop is made where a step takes no longer, unless it is asked for"""
_PATIENCE_STEPS, _LEAST_PATIENCE_SECONDS = 4.0, 0.5
"""how long that step may take, in steps, and at least: an evaluation may come in between"""
_COPY_SECONDS = 2.0
"""how long a rank that ends waits for storage to take its fingerprints"""
_WHAT = {
    ProofPart.BATCH: "another batch",
    ProofPart.RANDOM: "other random numbers",
    ProofPart.RATES: "another learning rate",
    ProofPart.LOSS: "another loss",
    ProofPart.PARAMETER: "another value",
    ProofPart.OBJECT: "another state",
}


class ResumeVerification:
    """The proof of one rank's resumes."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Before the state is known."""
        self._coordinator = coordinator
        self._page = coordinator.page
        self._mode = os.environ.get(protocol.ENV_VERIFY_RESUME, "auto")
        self._copy = layout.fingerprints_path(coordinator.checkpoint_dir, coordinator.rank)
        self._proof: StepProof | None = None
        self._resumed = 0
        """the step at which the newest proof has begun"""
        self._writer: threading.Thread | None = None
        self._copy_is_due = False
        self._stop: Callable[[], None] | None = None
        """ends this process, once the step behind a stop is made"""
        self._timer: threading.Timer | None = None
        self._leaving = threading.Lock()

    def begin(
        self,
        objects: Mapping[str, Any],
        step: int,
        kind: Resume,
        *,
        is_comparable: bool,
        restored_otherwise: Sequence[str] = (),
    ) -> None:
        """Begin to note fingerprints; what is to be given is said at StepProof.begin."""
        if self._proof is not None:
            self._proof.close()
        try:
            self._proof = StepProof(
                objects,
                page=self._page,
                directory=self._coordinator.memory_dir,
                rank=self._coordinator.rank,
                on_end=self._tell,
            )
        except OSError as error:
            self._proof = None
            say(f"cannot note fingerprints of steps: {error}; a resume of this rank will not be verified")
            return
        self._resumed = step
        self._proof.begin(step, kind, self._copy, is_comparable=is_comparable, restored_otherwise=restored_otherwise)

    def _tell(self, proof: Proof, name: str) -> None:
        """Write a difference into this rank's log. Without a supervisor the rank also says what else was shown."""
        alone = not self._coordinator.is_supervised
        rank = self._coordinator.rank
        if proof.verdict is ProofVerdict.DIFFERENT:
            say(f"{self._found(proof, name)}: this run is not exact from step {proof.step} on")
        elif proof.verdict is ProofVerdict.ROUNDED and alone:
            say(
                f"{self._found(proof, name)}, within rounding: kernels that are not deterministic, or"
                " another number of threads"
            )
        elif proof.verdict is ProofVerdict.SAME and alone and rank == 0:
            steps = "1 step" if proof.steps == 1 else f"{proof.steps} steps"
            say(f"the resume is verified: {steps} made again were the same, up to step {proof.step}")

    def _found(self, proof: Proof, name: str) -> str:
        """Say what differs. name: of the parameter or the object; empty: it is neither."""
        done = f"restored step {proof.step}" if proof.step == self._resumed else f"made step {proof.step} again"
        of = f" of `{name}`" if name else ""
        numbers = "" if math.isnan(proof.now) else f" ({proof.before!r} before, {proof.now!r} now)"
        return f"rank {self._coordinator.rank} has {done} with {_WHAT[proof.what]}{of}{numbers}"

    def check_random_numbers(self) -> None:
        """The generators were put back where the job has resumed."""
        if self._proof is not None:
            self._proof.check_random_numbers()

    # --- step by step -----------------------------------------------------------------------------------------

    def note_loss(self, loss: float) -> None:
        """The script tells the loss of the step under way."""
        if self._proof is not None:
            self._proof.note_loss(loss)

    def note_batch(self, sample: Tensor) -> None:
        """The step under way is given a batch, of which this is a sample."""
        if self._proof is not None:
            self._proof.note_batch(sample)

    def end_step(self, step: int) -> None:
        """`step` is complete. Ends this process where that step was made behind a stop."""
        if self._proof is not None:
            self._proof.end_step(step, in_full=self._copy_is_due or self._stop is not None)
            if self._copy_is_due:
                self._copy_is_due = False
                self._start_copy(self._proof)
        if self._stop is not None:
            self._leave_with_copy(self._stop)

    def note_snapshot(self, step: int) -> None:
        """A snapshot of `step` is to be taken."""
        if self._proof is not None:
            self._proof.note_snapshot(step)

    # --- what the next run compares with ----------------------------------------------------------------------

    def leave_copy_at_next_step(self) -> None:
        """A checkpoint of the newest step is asked for: leave its fingerprint, and the next one's, beside it."""
        self._copy_is_due = self._proof is not None

    def _start_copy(self, proof: StepProof) -> None:
        """A supervisor's saver copies the ring: a rank in a write that storage holds up could not be killed."""
        if self._coordinator.is_supervised:
            return
        if self._writer is None or not self._writer.is_alive():
            self._writer = proof.leave_copy(self._copy)

    def should_make_another_step(self) -> bool:
        """Whether a rank that is told to stop makes a step more than is saved: the next run will make it again.

        All ranks of a node answer alike, but for a step whose time is at the limit; those of several nodes do not know
        of each other, and make one only where it is asked for.
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
        """Let the script make one step more, and call `stop` behind it; leave without it where it takes too long.

        The snapshot at which the job stops must be whole, and held for the saver.
        """
        self._stop = stop
        if self._proof is not None:
            self._proof.await_step(self._page.step + 1)
        patience = max(_PATIENCE_STEPS * self._page.step_seconds, _LEAST_PATIENCE_SECONDS)
        self._timer = threading.Timer(patience, self._leave_at_once)
        self._timer.daemon = True
        self._timer.start()

    def cancel_stop(self) -> None:
        """The training has ended before another step was made: the step that is saved is its last one."""
        if self._timer is not None:
            self._timer.cancel()
        if self._proof is not None:
            self._proof.await_step(0)
        self._stop = None

    @property
    def is_stopping(self) -> bool:
        """Whether the step behind a stop is awaited."""
        return self._stop is not None

    def leave_if_stopping(self) -> None:
        """The interpreter ends while the step behind a stop is awaited."""
        if self._stop is not None:
            self._leave_at_once()

    def _leave_with_copy(self, stop: Callable[[], None]) -> None:
        if not self._leaving.acquire(blocking=False):
            threading.Event().wait()  # the timer's thread ends this process
        self.cancel_stop()
        if self._proof is not None:
            self._start_copy(self._proof)
        if self._writer is not None:
            self._writer.join(_COPY_SECONDS)
        stop()

    def _leave_at_once(self) -> NoReturn:
        """In the timer's thread, or as the interpreter ends: the step was not made in time."""
        if not self._leaving.acquire(blocking=False):
            threading.Event().wait()  # the main thread ends this process
        if self._proof is not None:
            self._proof.await_step(0)
        self._page.raise_flag(protocol.Flag.STOPPED)
        self._page.phase = protocol.Phase.TEARDOWN
        self._coordinator.leave_at_once()
