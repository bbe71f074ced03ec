"""Notes the fingerprint of every step, and proves a resume: compares the steps that are made again with those before.

What the process before has left lies in its ring (fingerprint_ring.py) beside the page, or in a copy of the ring beside
the checkpoints. It counts only where its record of the step at which this process resumes has the very parameters that
were restored: records of another run, or of a run that went another way, are forgotten. An object that was not restored
as it was saved ends the proof before its first step.
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
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, tell_proof
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

_LONG_STEP_SECONDS = 0.01
_SHARE_OF_LONG_STEPS, _SHARE_OF_SHORT_STEPS = 0.008, 0.02
"""of a step's time: what its fingerprint may take; where it takes more, only every n-th step is noted in full, and of
the others batches, losses, learning rates and torch's random numbers"""
_FORGETTING = 0.1
"""share of a new measurement in the running means of costs and of step times"""


_RARELY = 8
"""of so many steps one is noted with the generators of Python and NumPy as well, and so is one with a snapshot"""

PLACE_IN_LOOPS = "place in job.epochs()"
"""what is named beside the attached objects"""


class StepProof:
    """The fingerprints of one training on one rank."""

    def __init__(
        self,
        objects: Mapping[str, Any],
        *,
        page: Page,
        directory: Path,
        rank: int,
        on_end: Callable[[Proof, str], None],
    ) -> None:
        """Lay the ring out, before anything is noted.

        Args:
            objects: name -> attached object.
            page: of this rank.
            directory: of pages and snapshots.
            rank: of the job.
            on_end: called once when nothing is to be compared any more, with the record and the name of the parameter
                or the object that differs; the name is empty where none does.

        Raises:
            OSError: the ring cannot be made.
        """
        self._page = page
        self._directory = directory
        self._rank = rank
        self._on_end = on_end
        self._objects = [*objects, PLACE_IN_LOOPS]
        self._optimizers = [one for one in objects.values() if isinstance(one, Optimizer)]
        self._samples = ParameterSamples(objects)
        self._names = [*self._samples.names, *self._objects]
        """of the sampled parameters, in the order of their indices, and of the attached objects"""
        self._ring = FingerprintRing(
            ring_path(directory, rank), sample_bytes=self._samples.bytes_needed, names_checksum=self._samples.checksum
        )
        device = self._samples.device
        size = self._samples.bytes_needed
        self._staging = None if device is None else DeviceStaging.of_device(device, size)
        self._device_loss: Tensor | None = None
        """the last loss of the step under way, where it lies on a device"""
        self._before: dict[int, StepFingerprint] = {}
        """what the process before has noted of steps that are not made again yet"""
        self._restored: StepFingerprint | None = None
        """what the process before has noted of the step at which this process resumes"""
        self._previous = b""
        self._step = 0
        """the step under way"""
        self._batch = 0
        self._compared = 0
        self._ahead = 0
        self._newest_before = -1
        """the newest step that can be compared; -1: there is none any more"""
        self._cost_seconds = self._step_seconds = 0.0
        self._every = 1
        self._begun = 0.0

    def begin(
        self, step: int, kind: Resume, copy: Path, *, is_comparable: bool, restored_otherwise: Sequence[str] = ()
    ) -> None:
        """The state of `step` is restored, or training begins with it: find what can be compared, and note the state.

        Args:
            step: steps completed so far.
            kind: where the state came from.
            copy: where a job that was stopped may have left a copy of the ring, see `leave_copy`.
            is_comparable: False where what follows is to be other than it was: the script asks for a new schedule, or
                samples are skipped.
            restored_otherwise: the attached objects, or PLACE_IN_LOOPS, that are not as they were when they were saved.
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
            sizes = {"sample_bytes": self._samples.bytes_needed, "names_checksum": self._samples.checksum}
            stopped = read_copy(copy, **sizes)
            before = stopped if self._is_same_state(stopped.get(step), now, is_in_memory=False) else {}
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
            self._differs(step, StepDifference(ProofPart.OBJECT, is_rounding=False, parameter=first))
        elif is_resumed:  # else a training before this one may have told what its resume has shown
            verdict = ProofVerdict.AHEAD if self._before else ProofVerdict.UNVERIFIED
            tell_proof(self._page, Proof(verdict, step=step, ahead=self._ahead))
        self._begin_step(step + 1)
        seen_losses.listen(self._note_seen_loss)

    def check_random_numbers(self) -> None:
        """Training begins, and the generators were put back: compare them with those of the snapshot, once.

        Only now they are those of the step at which this process resumes, and are noted for the process after this one.
        """
        before, self._restored = self._restored, None
        step = self._step - 1
        self._finish(step, has_samples=bool(self._ring.record(step).parts & StepPart.SAMPLES), has_all_generators=True)
        now = self._ring.record(step).random
        if before is not None and before.parts & StepPart.ALL_RANDOM and now != before.random:
            self._differs(before.step, StepDifference(ProofPart.RANDOM, is_rounding=False))

    def _is_same_state(self, before: StepFingerprint | None, now: StepFingerprint, *, is_in_memory: bool) -> bool:
        """Whether the process before had these parameters at this step.

        Of short steps not all are noted in full. What lies in memory is of this job, and of the attempt before.
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
        """Copy the ring to `path`, for the run that goes on where this one ends; returns the thread that writes.

        Storage that does not answer must not hold up the training: only the caller may wait for the thread.
        """
        writer = threading.Thread(
            target=_write_copy, args=(path, bytes(self._ring.memory)), name="ftlaunch-fingerprints", daemon=True
        )
        writer.start()
        return writer

    def await_step(self, step: int) -> None:
        """Have the saver wait for the record of a step that is made behind a stop; 0: it shall not wait any more."""
        self._ring.await_step(step)

    def close(self) -> None:
        """Another training begins: note nothing more."""
        seen_losses.listen(None)

    def _begin_step(self, step: int) -> None:
        self._step = step
        self._batch = 0
        self._device_loss = None
        self._ring.begin(step)
        self._begun = time.perf_counter()

    # --- within a step ----------------------------------------------------------------------------------------

    def note_batch(self, sample: Tensor) -> None:
        """Note a batch that the step under way was given. sample: a few values of the batch, of any shape and dtype."""
        fingerprint = fingerprint_batch(sample, self._batch)
        if fingerprint is not None:
            self._batch = fingerprint
            self._ring.note_batch(self._step, fingerprint)

    def note_loss(self, loss: float) -> None:
        """Note a loss of the step under way; of several the last one counts."""
        self._ring.note_loss(self._step, loss)

    def _note_seen_loss(self, loss: Tensor) -> None:
        if loss.device.type == "cpu":
            self._ring.note_loss(self._step, loss.item())
        else:
            self._device_loss = loss

    # --- at a boundary ----------------------------------------------------------------------------------------

    def end_step(self, step: int, *, in_full: bool = False) -> None:
        """`step` is complete, and its snapshot not taken yet: note it, and compare it where it was made before.

        in_full: however short the step was.
        """
        began = time.perf_counter()
        if step <= self._newest_before:
            self._compare(step)
        elif in_full or step % self._every == 0:
            self._note(step, must_wait=in_full, has_all_generators=step % _RARELY == 0)
            cost = time.perf_counter() - began
            self._pace(cost, took=began - self._begun)
        else:
            self._finish(step, has_samples=False)
        self._begin_step(step + 1)

    def note_snapshot(self, step: int) -> None:
        """A snapshot of `step`, which is complete, is to be taken: what resumes from it must find its fingerprint."""
        if self._staging is not None:
            self._receive(self._staging, must_wait=True)  # the snapshot waits for the device as well
        parts = self._ring.record(step).parts
        if not (parts & StepPart.SAMPLES and parts & StepPart.ALL_RANDOM):
            self._note(step, must_wait=True, has_all_generators=True)

    def _pace(self, cost: float, took: float) -> None:
        """Note only every n-th step in full where steps are too short for more."""
        weight = _FORGETTING if self._cost_seconds else 1.0
        self._cost_seconds += weight * (cost - self._cost_seconds)
        self._step_seconds += weight * (took - self._step_seconds)
        share = _SHARE_OF_LONG_STEPS if self._step_seconds >= _LONG_STEP_SECONDS else _SHARE_OF_SHORT_STEPS
        self._every = max(1, math.ceil(self._cost_seconds / max(share * self._step_seconds, 1e-9)))

    def _note(self, step: int, *, must_wait: bool, has_all_generators: bool = False) -> None:
        """Write what is known at the end of a step.

        must_wait: also for what a device has yet to compute. has_all_generators: with Python's and NumPy's, too.
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
        """Write the random numbers and the learning rates as they are at the end of a step: some microseconds."""
        self._ring.finish(
            step,
            random=fingerprint_random_numbers(has_all_generators=has_all_generators),
            rates=fingerprint_learning_rates(self._optimizers),
            has_samples=has_samples,
            has_all_generators=has_all_generators,
        )

    def _send(self, step: int, staging: DeviceStaging) -> None:
        """Queue the samples and the loss of a step on the device."""
        buffer = staging.take_buffer()
        if buffer is None:
            return
        if not self._samples.gather(step, buffer.memory, 0):
            staging.give_back(buffer)
            return
        if self._device_loss is not None:
            buffer.loss.copy_(self._device_loss.reshape(1), non_blocking=True)
        staging.send(step, buffer, has_loss=self._device_loss is not None)

    def _receive(self, staging: DeviceStaging, *, must_wait: bool) -> None:
        """Write what has come from the device into the records of its steps."""
        for step, buffer, has_loss in staging.arrivals(must_wait=must_wait):
            if has_loss:
                self._ring.note_loss(step, buffer.loss.item())
            self._ring.note_samples(step, buffer.memory)

    def _compare(self, step: int) -> None:
        before = self._before.pop(step, None)
        has_all_generators = step % _RARELY == 0 or (before is not None and bool(before.parts & StepPart.ALL_RANDOM))
        self._note(step, must_wait=True, has_all_generators=has_all_generators)
        now = self._ring.record(step)
        previous = self._previous if self._samples.is_one_turn else b""
        self._previous = now.samples
        if before is None or not before.parts & now.parts & TELLING:
            if step >= self._newest_before:
                self._end_without_difference(step)
            return
        comparison = SampleComparison(
            first_difference=lambda one, other: self._samples.first_difference(step, one, other),
            distance=lambda one, other: self._samples.distance(step, one, other),
            is_half=self._samples.is_half,
        )
        self._compared += 1
        found = compare_steps(before, now, comparison, previous)
        if found is not None:
            self._differs(step, found)
        elif step >= self._newest_before:
            self._end_without_difference(step)
        else:
            tell_proof(self._page, Proof(ProofVerdict.AHEAD, step=step, steps=self._compared, ahead=self._ahead))

    def _end_without_difference(self, step: int) -> None:
        verdict = ProofVerdict.SAME if self._compared else ProofVerdict.UNVERIFIED
        self._end(Proof(verdict, step=step, steps=self._compared, ahead=self._ahead))

    def _differs(self, step: int, found: StepDifference) -> None:
        verdict = ProofVerdict.ROUNDED if found.is_rounding else ProofVerdict.DIFFERENT
        self._ring.forget_after(step)  # of a run that went another way
        self._end(
            Proof(
                verdict, step=step, steps=self._compared, ahead=self._ahead, what=found.what, before=found.before,
                now=found.now, parameter=found.parameter,
            )
        )  # fmt: skip

    def _end(self, proof: Proof) -> None:
        """Nothing is compared from here on."""
        self._newest_before = -1
        self._before = {}
        tell_proof(self._page, proof)
        self._on_end(proof, self._names[proof.parameter] if proof.parameter >= 0 else "")


def _made_after(step: int, records: Mapping[int, StepFingerprint]) -> dict[int, StepFingerprint]:
    """Of the records those of later steps that can be compared, by step."""
    return {number: one for number, one in records.items() if number > step and one.parts & TELLING}


def _write_copy(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace_durable(path, content)
    except OSError as error:
        say(f"cannot leave fingerprints of the newest steps in {path}: {error}; a later resume is not verified by them")
