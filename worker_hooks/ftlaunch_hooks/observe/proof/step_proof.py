"""Notes the fingerprint of every step, and proves a resume: compares steps made again with the process before.

The process before has left its fingerprints in its ring (fingerprint_ring.py) beside the page, or in a copy of the ring
beside the checkpoints. These fingerprints count only if their record of the step at which this process resumes has the
very parameters that were restored: records of another run, or of a run that went another way, are forgotten. An object
that was not restored as it was saved ends the proof before its first step.

ResumeVerification (job/resume_verification.py) calls this module in the thread that trains. Copies of the ring are
written in a thread of their own.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ftlaunch_contract import protocol
from ftlaunch_contract.files import atomic
from ftlaunch_contract.pages.fingerprint_ring import (
    TELLING,
    FingerprintRing,
    StepFingerprint,
    StepPart,
    read_copy,
    ring_path,
)
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, write_proof
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.observe.proof import seen_losses
from ftlaunch_hooks.observe.proof.comparison import SampleComparison, StepDifference, compare_steps
from ftlaunch_hooks.observe.proof.device_staging import DeviceStaging
from ftlaunch_hooks.observe.proof.parameter_samples import ParameterSamples
from ftlaunch_hooks.observe.proof.process_state import (
    fingerprint_batch,
    fingerprint_learning_rates,
    fingerprint_random_numbers,
)
from ftlaunch_hooks.process.say import say

# A fingerprint may take a share of the step's time. Where a full fingerprint takes more, only every n-th step is noted
# in full, and the other steps without samples of the parameters.
_LONG_STEP_SECONDS = 0.01
_SHARE_OF_LONG_STEPS = 0.008
_SHARE_OF_SHORT_STEPS = 0.02
_FORGETTING = 0.1
"""share of a new measurement in the running means of costs and of step times"""
_ALL_GENERATORS_EVERY = 8
"""number of steps between two that are noted with the generators of Python and NumPy; steps with a snapshot also are"""

PLACE_IN_LOOPS = "place in job.epochs()"
"""the name under which the loops' position stands among the attached objects"""


class StepProof:
    """The fingerprints of one training on one rank, and their comparison with the process before."""

    def __init__(
        self,
        objects: Mapping[str, Any],
        *,
        page: Page,
        directory: Path,
        rank: int,
        on_end: Callable[[Proof, str], None],
    ) -> None:
        """Lay out the ring. `begin` must follow before anything is noted.

        Args:
            objects: attached objects by name.
            page: the page of this rank.
            directory: the memory directory, which has pages and snapshots.
            rank: the rank's number in the job.
            on_end: called once, when the comparison has ended, with the proof, and with the name of the parameter or
                object that differs; the name is empty where neither does.

        Raises:
            OSError: the ring cannot be made.
        """
        self._page = page
        self._directory = directory
        self._rank = rank
        self._on_end = on_end
        self._objects = [*objects, PLACE_IN_LOOPS]
        self._optimizers = [target for target in objects.values() if isinstance(target, Optimizer)]
        self._samples = ParameterSamples(objects)
        self._names = [*self._samples.names, *self._objects]
        """names of the sampled parameters in the order of their indices, then names of the attached objects"""
        self._ring = FingerprintRing(
            ring_path(directory, rank), sample_bytes=self._samples.bytes_needed, names_checksum=self._samples.checksum
        )
        devices = self._samples.devices
        size = self._samples.bytes_needed
        self._staging = DeviceStaging.of_devices(devices, size) if devices else None
        self._device_loss: Tensor | None = None
        """the last loss of the step under way, if the loss lies on a device of parameters"""
        self._before: dict[int, StepFingerprint] = {}
        """the fingerprints by the process before, by step, of steps that are not made again yet"""
        self._restored: StepFingerprint | None = None
        """the fingerprint by the process before of the step at which this process resumes"""
        self._previous = b""
        """the samples at the beginning of the step that is compared next"""
        self._step = 0
        """number of the step under way"""
        self._batch = 0
        """fingerprint of the batches of the step under way"""
        self._compared = 0
        """number of steps compared so far"""
        self._ahead = 0
        """number of steps that the process before had made beyond the restored step"""
        self._newest_before = -1
        """the newest step that can be compared; -1 once there is none"""
        self._cost_seconds = 0.0
        """running mean of the time of a full fingerprint"""
        self._step_seconds = 0.0
        """running mean of the time of a step"""
        self._every = 1
        """number of steps between two that are noted in full"""
        self._begun = 0.0
        """time.perf_counter() at the beginning of the step under way"""

    def begin(
        self, step: int, kind: Resume, copy: Path, *, is_comparable: bool, restored_otherwise: Sequence[str] = ()
    ) -> None:
        """Find the fingerprints that can be compared, and note the state of `step`, which the rank has now.

        Args:
            step: number of completed steps.
            kind: where the state came from.
            copy: path at which a job that was stopped may have left a copy of the ring with `leave_copy`.
            is_comparable: False if the following steps are meant to differ from those before: the script asks for a
                new schedule, or samples are skipped.
            restored_otherwise: names of the attached objects, or PLACE_IN_LOOPS, whose restored state differs from the
                saved state.
        """
        is_resumed = kind.in_memory or kind is Resume.STORAGE
        found = self._ring.read() if is_resumed and is_comparable else {}
        self._ring.await_step(0)
        self._ring.begin(step)
        self._note(step, must_wait=True)
        now = self._ring.record(step)
        before = found if self._is_same_state(found.get(step), now, is_in_memory=kind.in_memory) else {}
        self._restored = before.get(step)
        if is_resumed and is_comparable and not _made_after(step, before):
            copied = read_copy(copy, sample_bytes=self._samples.bytes_needed, names_checksum=self._samples.checksum)
            before = copied if self._is_same_state(copied.get(step), now, is_in_memory=False) else {}
            self._restored = self._restored or before.get(step)
        self._before = _made_after(step, before)
        if not self._before:
            self._ring.forget_after(step)
        self._newest_before = max(self._before, default=-1)
        self._ahead = len(self._before)
        self._previous = now.samples
        self._list_names()
        if restored_otherwise:
            first = len(self._samples.names) + self._objects.index(restored_otherwise[0])
            self._end_with_difference(step, StepDifference(ProofPart.OBJECT, is_rounding=False, parameter=first))
        elif is_resumed:  # otherwise the page may have the proof of a training before this one, which must stay
            verdict = ProofVerdict.AHEAD if self._before else ProofVerdict.UNVERIFIED
            write_proof(self._page, Proof(verdict, step=step, ahead=self._ahead))
        self._begin_step(step + 1)
        seen_losses.listen(self._note_seen_loss)

    def check_random_numbers(self) -> None:
        """Compare the generators with their states at the restored step, once, after they were put back.

        Call this as training begins: earlier the generators do not have the states of the restored step. The states are
        noted for the process after this one.
        """
        before = self._restored
        self._restored = None
        step = self._step - 1
        self._finish(step, has_samples=bool(self._ring.record(step).parts & StepPart.SAMPLES), has_all_generators=True)
        now = self._ring.record(step).random
        if before is not None and before.parts & StepPart.ALL_RANDOM and now != before.random:
            self._end_with_difference(before.step, StepDifference(ProofPart.RANDOM, is_rounding=False))

    def _is_same_state(self, before: StepFingerprint | None, now: StepFingerprint, *, is_in_memory: bool) -> bool:
        """Return whether the process before had the parameters of `now` at the same step.

        A short step may have been noted without samples. Then only a ring in memory is trusted: the attempt before of
        this very job has left it.
        """
        if before is None or not before.parts & StepPart.SAMPLES:
            return is_in_memory
        return self._samples.first_difference(now.step, before.samples, now.samples) is None

    def _list_names(self) -> None:
        path = protocol.sampled_names_path(self._directory, self._rank)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._names))
        temporary.rename(path)

    def leave_copy(self, path: Path) -> threading.Thread:
        """Copy the ring to `path` in a new thread, for the run that resumes where this one ends.

        Storage that does not answer must not hold up the training.

        Returns:
            The thread, which is a daemon. The caller decides how long to wait for it.
        """
        writer = threading.Thread(
            target=_write_copy, args=(path, bytes(self._ring.memory)), name="ftlaunch-fingerprints", daemon=True
        )
        writer.start()
        return writer

    def await_step(self, step: int) -> None:
        """Make the saver wait for the record of `step`, which is made behind a stop; 0 ends the saver's wait."""
        self._ring.await_step(step)

    def close(self) -> None:
        """Stop listening to losses, because another training begins."""
        seen_losses.listen(None)

    def _begin_step(self, step: int) -> None:
        self._step = step
        self._batch = 0
        self._device_loss = None
        self._ring.begin(step)
        self._begun = time.perf_counter()

    # --- within a step ----------------------------------------------------------------------------------------

    def note_batch(self, sample: Tensor) -> None:
        """Note a batch of the step under way. sample: a few values of the batch, of any shape and dtype."""
        fingerprint = fingerprint_batch(sample, self._batch)
        if fingerprint is not None:
            self._batch = fingerprint
            self._ring.note_batch(self._step, fingerprint)

    def note_loss(self, loss: float) -> None:
        """Note a loss of the step under way. The last loss of a step counts."""
        self._ring.note_loss(self._step, loss)

    def _note_seen_loss(self, loss: Tensor) -> None:
        if loss.device.type == "cpu":
            self._ring.note_loss(self._step, loss.item())
        elif loss.device in self._samples.devices:
            self._device_loss = loss

    # --- at a boundary ----------------------------------------------------------------------------------------

    def end_step(self, step: int, *, in_full: bool = False) -> None:
        """Note a complete step, and compare it if the process before has made it. Call this before its snapshot.

        Args:
            step: number of the step.
            in_full: whether to sample the parameters however short the step was.
        """
        began = time.perf_counter()
        if step <= self._newest_before:
            self._compare(step)
        elif in_full or step % self._every == 0:
            self._note(step, must_wait=in_full, has_all_generators=step % _ALL_GENERATORS_EVERY == 0)
            cost = time.perf_counter() - began
            self._pace(cost, took=began - self._begun)
        else:
            self._finish(step, has_samples=False)
        self._begin_step(step + 1)

    def note_snapshot(self, step: int) -> None:
        """Complete the fingerprint of `step` before its snapshot is taken, for a process that resumes from it."""
        if self._staging is not None:
            self._receive(self._staging, must_wait=True)  # the snapshot waits for the device as well
        parts = self._ring.record(step).parts
        if not (parts & StepPart.SAMPLES and parts & StepPart.ALL_RANDOM):
            self._note(step, must_wait=True, has_all_generators=True)

    def _pace(self, cost: float, took: float) -> None:
        """Set the number of steps between two that are noted in full, from the means of costs and step times."""
        weight = _FORGETTING if self._cost_seconds else 1.0
        self._cost_seconds += weight * (cost - self._cost_seconds)
        self._step_seconds += weight * (took - self._step_seconds)
        share = _SHARE_OF_LONG_STEPS if self._step_seconds >= _LONG_STEP_SECONDS else _SHARE_OF_SHORT_STEPS
        self._every = max(1, math.ceil(self._cost_seconds / max(share * self._step_seconds, 1e-9)))

    def _note(self, step: int, *, must_wait: bool, has_all_generators: bool = False) -> None:
        """Write a full fingerprint at the end of a step.

        Args:
            step: number of the step.
            must_wait: whether to wait for samples that a device has yet to compute.
            has_all_generators: whether to include the generators of Python and NumPy.
        """
        if self._staging is None:
            has_samples = self._samples.gather(step, self._ring.memory, self._ring.samples_at(step))
        else:
            has_samples = False
            self._receive(self._staging, must_wait=must_wait)
            self._send(step, self._staging)
        self._finish(step, has_samples=has_samples, has_all_generators=has_all_generators)
        if self._staging is not None and must_wait:
            self._receive(self._staging, must_wait=True)

    def _finish(self, step: int, *, has_samples: bool, has_all_generators: bool = False) -> None:
        """Write the random numbers and the learning rates at the end of a step. Takes some microseconds."""
        self._ring.finish(
            step,
            random=fingerprint_random_numbers(has_all_generators=has_all_generators),
            rates=fingerprint_learning_rates(self._optimizers),
            has_samples=has_samples,
            has_all_generators=has_all_generators,
        )

    def _send(self, step: int, staging: DeviceStaging) -> None:
        """Queue copies of the samples and the loss of a step on the device, if a buffer is free."""
        buffer = staging.acquire_buffer()
        if buffer is None:
            return
        if not self._samples.gather(step, buffer.memory, 0):
            staging.release_buffer(buffer)
            return
        if self._device_loss is not None:
            buffer.loss.copy_(self._device_loss.reshape(1), non_blocking=True)
        staging.send(step, buffer, has_loss=self._device_loss is not None)

    def _receive(self, staging: DeviceStaging, *, must_wait: bool) -> None:
        """Write samples and losses that have arrived from the device into the records of their steps."""
        for step, buffer, has_loss in staging.arrivals(must_wait=must_wait):
            if has_loss:
                self._ring.note_loss(step, buffer.loss.item())
            self._ring.note_samples(step, buffer.memory)

    def _compare(self, step: int) -> None:
        """Note a step in full, compare it with the process before, and report the result."""
        before = self._before.pop(step, None)
        was_in_full = before is not None and bool(before.parts & StepPart.ALL_RANDOM)
        has_all_generators = step % _ALL_GENERATORS_EVERY == 0 or was_in_full
        self._note(step, must_wait=True, has_all_generators=has_all_generators)
        now = self._ring.record(step)
        previous = self._previous if self._samples.is_one_turn else b""
        self._previous = now.samples
        if before is None or not before.parts & now.parts & TELLING:
            if step >= self._newest_before:
                self._end_without_difference(step)
            return
        comparison = SampleComparison(
            first_difference=lambda samples, others: self._samples.first_difference(step, samples, others),
            distance=lambda samples, others: self._samples.distance(step, samples, others),
            is_half=self._samples.is_half,
        )
        self._compared += 1
        difference = compare_steps(before=before, now=now, samples=comparison, previous=previous)
        if difference is not None:
            self._end_with_difference(step, difference)
        elif step >= self._newest_before:
            self._end_without_difference(step)
        else:
            write_proof(self._page, Proof(ProofVerdict.AHEAD, step=step, steps=self._compared, ahead=self._ahead))

    def _end_without_difference(self, step: int) -> None:
        verdict = ProofVerdict.SAME if self._compared else ProofVerdict.UNVERIFIED
        self._end(Proof(verdict, step=step, steps=self._compared, ahead=self._ahead))

    def _end_with_difference(self, step: int, difference: StepDifference) -> None:
        self._ring.forget_after(step)  # those records are of a run that went another way
        self._end(
            Proof(
                ProofVerdict.ROUNDED if difference.is_rounding else ProofVerdict.DIFFERENT,
                step=step, steps=self._compared, ahead=self._ahead, what=difference.what, before=difference.before,
                now=difference.now, parameter=difference.parameter,
            )
        )  # fmt: skip

    def _end(self, proof: Proof) -> None:
        """End the comparison, and report the proof."""
        self._newest_before = -1
        self._before = {}
        write_proof(self._page, proof)
        self._on_end(proof, self._names[proof.parameter] if proof.parameter >= 0 else "")


def _made_after(step: int, records: Mapping[int, StepFingerprint]) -> dict[int, StepFingerprint]:
    """Return the records of later steps that can be compared, by step."""
    return {number: record for number, record in records.items() if number > step and record.parts & TELLING}


def _write_copy(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace_durable(path, content)
    except OSError as error:
        say(f"cannot leave fingerprints of the newest steps in {path}: {error}; a later resume is not verified by them")
