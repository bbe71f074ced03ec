"""Judges whether the steps made again after a resume equal those of the attempt before. Pure; monotonic seconds.

Each rank compares its own steps, and writes the result into its page (`ftlaunch_contract/pages/proof_record.py`). This
module combines the results of all ranks into one answer about the resume. `engine/watch.py` asks for the answer.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, read_proof

# Time for which a difference is held back for ranks that have not compared the step yet: another rank's batch may
# differ, which is the cause of a different loss on this rank.
_SETTLING_SECONDS = 0.3
_SHORT_DIGITS = 9  # significant digits of a number in a sentence
_EXACT_DIGITS = 17  # significant digits that tell any two doubles apart


class ProofAnswer(enum.Enum):
    """The answer about a resume. The values are words of the journal."""

    SAME = "same"
    ROUNDED = "rounded"
    DIFFERENT = "different"
    UNVERIFIED = "unverified"


@dataclass(frozen=True)
class Deviation:
    """The first difference between a step and the same step made again."""

    step: int  # n for the n-th step
    what: ProofPart  # the part that differs
    rank: int
    parameter: int = -1  # index in the rank's list of sampled parameters and attached objects; -1 for other parts
    before: float = float("nan")  # value of the loss or the parameter; NaN if the part is no number
    now: float = float("nan")  # value in the step made again; NaN if the part is no number


@dataclass(frozen=True)
class ResumeProof:
    """The answer about one resume, with numbers."""

    answer: ProofAnswer
    resumed: int  # step at which the ranks resumed
    steps: int  # number of steps that were made again and compared: the least of the ranks that compared any; 0 if none
    compared: int  # number of ranks that compared any step
    ranks: int  # number of ranks of the job
    deviation: Deviation | None = None  # None if nothing differed


def conclude(resumed: int, proofs: Mapping[int, Proof], ranks: int) -> ResumeProof:
    """Return the answer that the ranks' records give as they are now.

    A rank that has not compared all its steps yet counts with the steps that it has compared.

    Args:
        resumed: step at which the ranks resumed.
        proofs: records by rank. A rank without a record, or with nothing to compare, verifies nothing.
        ranks: number of ranks of the job.
    """
    counts = [proof.steps for proof in proofs.values() if proof.steps > 0 and proof.verdict in _COMPARED]
    different = _first(proofs, ProofVerdict.DIFFERENT)
    deviation = different or _first(proofs, ProofVerdict.ROUNDED)
    if different:
        answer = ProofAnswer.DIFFERENT
    elif deviation:
        answer = ProofAnswer.ROUNDED
    else:
        answer = ProofAnswer.SAME if counts else ProofAnswer.UNVERIFIED
    return ResumeProof(
        answer=answer,
        resumed=resumed,
        steps=min(counts, default=0),
        compared=len(counts),
        ranks=ranks,
        deviation=deviation,
    )


_COMPARED = frozenset({ProofVerdict.AHEAD, ProofVerdict.SAME, ProofVerdict.ROUNDED, ProofVerdict.DIFFERENT})


def _first(proofs: Mapping[int, Proof], verdict: ProofVerdict) -> Deviation | None:
    """Return the earliest deviation among the ranks with a verdict; None without such a rank.

    In one step, a different batch comes before the different loss that the batch causes.
    """
    found = [(rank, proof) for rank, proof in proofs.items() if proof.verdict is verdict]
    if not found:
        return None
    rank, proof = min(found, key=lambda entry: (entry[1].step, entry[1].what, entry[0]))
    return Deviation(
        step=proof.step,
        what=proof.what,
        rank=rank,
        parameter=proof.parameter,
        before=proof.before,
        now=proof.now,
    )


class ProofWatch:
    """Follows the proof of one attempt's resume, from the moment at which all ranks have their state."""

    def __init__(self, ranks: int) -> None:
        """Follow nothing until `begin` or `adopt`.

        Args:
            ranks: number of ranks of the job.
        """
        self._ranks = ranks
        self._resumed: int | None = None  # None: nothing to follow, or nothing any more
        self._is_reported = False  # an answer was returned
        self._different_since: float | None = None  # time at which the first difference was seen; None: no difference

    def begin(self, resumed: int) -> None:
        """Follow the proof of a resume, now that all ranks have resumed at a step of an earlier attempt."""
        self._resumed = resumed

    def adopt(self, pages: Sequence[tuple[int, Page]]) -> None:
        """Follow an attempt that another head has watched. If all records are final, that head has reported them."""
        steps = [page.resumed[1] for _, page in pages]
        self._resumed = min(steps, default=None)
        self._is_reported = self._are_all_final(_read(pages))

    def observe(self, pages: Iterable[tuple[int, Page]], now: float, *, is_over: bool) -> ResumeProof | None:
        """Return the answer once it is known; None before and after. A difference is returned after any other answer.

        Args:
            pages: the pages that were written in the attempt, with their ranks.
            now: monotonic seconds.
            is_over: some rank has ended, so that other ranks may wait in vain: the answer is what is known by now.
        """
        if self._resumed is None:
            return None
        proofs = _read(pages)
        is_complete = self._are_all_final(proofs)
        if any(proof.verdict is ProofVerdict.DIFFERENT for proof in proofs.values()):
            self._different_since = now if self._different_since is None else self._different_since
            if not (is_complete or is_over or now - self._different_since >= _SETTLING_SECONDS):
                return None
            is_complete = True
        elif self._is_reported or not (is_complete or (is_over and proofs)):
            return None
        answer = conclude(self._resumed, proofs, self._ranks)
        self._is_reported = True
        self._resumed = None if is_complete else self._resumed
        return answer

    def _are_all_final(self, proofs: Mapping[int, Proof]) -> bool:
        return len(proofs) == self._ranks and all(proof.verdict.is_final for proof in proofs.values())


def _read(pages: Iterable[tuple[int, Page]]) -> dict[int, Proof]:
    """Return the records by rank, of the ranks that have written one. An older library of a rank writes none."""
    records = ((rank, read_proof(page)) for rank, page in pages)
    return {rank: proof for rank, proof in records if proof.verdict is not ProofVerdict.NONE}


# --- words ------------------------------------------------------------------------------------------------


def describe_proof(proof: ResumeProof, name: str = "") -> str:
    """Return the answer in one sentence for people.

    Args:
        proof: the answer.
        name: name of the parameter or the object that differs; empty if unknown.
    """
    at = proof.resumed
    if proof.answer is ProofAnswer.UNVERIFIED:
        return f"resumed at step {at}: not verified; no step was made again that could be compared"
    if proof.deviation is None:
        steps = "the step made again was" if proof.steps == 1 else f"the {proof.steps} steps made again were"
        return f"resumed at step {at}: verified; {steps} the same{_on_how_many(proof)}"
    deviation = proof.deviation
    if proof.answer is ProofAnswer.ROUNDED:
        return (
            f"resumed at step {at}: verified but for rounding; step {deviation.step} was made again on rank"
            f" {deviation.rank} from the same batch and random numbers, {describe_deviation(deviation, name)};"
            " kernels that are not deterministic do that"
        )
    if deviation.step == at:
        return (
            f"the resumed run differs: rank {deviation.rank} has restored step {at},"
            f" {describe_deviation(deviation, name)}; the run is not exact from there on"
        )
    return (
        f"the resumed run differs: step {deviation.step} was made again on rank {deviation.rank},"
        f" {describe_deviation(deviation, name)}; the run is not exact from step {deviation.step} on"
    )


def _on_how_many(proof: ResumeProof) -> str:
    """Return how many ranks compared anything, in words; empty if all ranks did."""
    if proof.compared == proof.ranks:
        return ""
    return f" on {proof.compared} of {proof.ranks} ranks; the others had nothing to compare"


def describe_deviation(deviation: Deviation, name: str = "") -> str:
    """Return what differed, as words that begin with "with".

    Args:
        deviation: the difference.
        name: name of the parameter or the object that differs; empty if unknown.
    """
    if deviation.what is ProofPart.PARAMETER:
        which = f"`{name}`" if name else "a parameter"
        return f"with another value of {which}{_numbers(deviation)}"
    if deviation.what is ProofPart.OBJECT:
        return f"with another state of {f'`{name}`' if name else 'an attached object'} than was saved"
    words = {
        ProofPart.BATCH: "with another batch",
        ProofPart.RANDOM: "with other random numbers",
        ProofPart.RATES: "with another learning rate",
        ProofPart.LOSS: "with another loss",
    }
    return words.get(deviation.what, "with another result") + _numbers(deviation)


def _numbers(deviation: Deviation) -> str:
    """Return both values in brackets, with enough digits to tell the values apart; empty if both are unknown."""
    before = deviation.before
    now = deviation.now
    if not isfinite(before) and not isfinite(now):
        return ""
    digits = _SHORT_DIGITS if f"{before:.{_SHORT_DIGITS}g}" != f"{now:.{_SHORT_DIGITS}g}" else _EXACT_DIGITS
    return f" ({before:.{digits}g} before, {now:.{digits}g} now)"
