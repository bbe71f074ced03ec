"""Whether the steps that the ranks made again after a resume were those of the attempt before. Pure; monotonic seconds.

Each rank compares its own steps, and tells the result in its page (`ftlaunch_contract/pages/proof_record.py`). Here the
results of all ranks become one answer about the resume.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, told_proof

# How long a difference is held back for ranks that have not compared the step yet: a batch of another rank that differs
# is the cause of a loss that differs here.
_SETTLING_SECONDS = 0.3
_SHORT_DIGITS, _EXACT_DIGITS = 9, 17


class ProofAnswer(enum.Enum):
    """What is known of a resume once its proof is complete; the value is what the journal says."""

    SAME = "same"
    ROUNDED = "rounded"
    DIFFERENT = "different"
    UNVERIFIED = "unverified"


@dataclass(frozen=True)
class Deviation:
    """The first thing that was not the same in a step that was made again.

    step: n for the n-th step. parameter: index in the rank's list of sampled parameters and attached objects, -1 where
    what differs is neither. before, now: of the loss or of the parameter; NaN where what differs is no number.
    """

    step: int
    what: ProofPart
    rank: int
    parameter: int = -1
    before: float = float("nan")
    now: float = float("nan")


@dataclass(frozen=True)
class ResumeProof:
    """The answer about one resume.

    resumed: the step at which the ranks resumed. steps: how many were made again and compared, the least of the ranks
    that could compare any. compared: how many ranks these are. deviation: None where nothing differed.
    """

    answer: ProofAnswer
    resumed: int
    steps: int
    compared: int
    ranks: int
    deviation: Deviation | None = None


def conclude(resumed: int, proofs: Mapping[int, Proof], ranks: int) -> ResumeProof:
    """Return the answer that the ranks' records give as they are now.

    A rank that has steps ahead counts with those that it has compared. proofs: by rank; a rank without a record, or
    with nothing to compare, verifies nothing.
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
    return ResumeProof(answer, resumed, min(counts, default=0), len(counts), ranks, deviation)


_COMPARED = frozenset({ProofVerdict.AHEAD, ProofVerdict.SAME, ProofVerdict.ROUNDED, ProofVerdict.DIFFERENT})


def _first(proofs: Mapping[int, Proof], verdict: ProofVerdict) -> Deviation | None:
    """Return the earliest deviation among the ranks with a verdict; a batch comes before the loss that it causes."""
    found = [(rank, proof) for rank, proof in proofs.items() if proof.verdict is verdict]
    if not found:
        return None
    rank, proof = min(found, key=lambda one: (one[1].step, one[1].what, one[0]))
    return Deviation(proof.step, proof.what, rank, proof.parameter, proof.before, proof.now)


class ProofWatch:
    """Follows the proof of one attempt's resume, from the moment at which all ranks have their state."""

    def __init__(self, ranks: int) -> None:
        """ranks: how many the job has."""
        self._ranks = ranks
        self._resumed: int | None = None  # None: there is nothing to follow, or no more
        self._is_told = False
        self._different_since: float | None = None

    def begin(self, resumed: int) -> None:
        """Follow the proof of a resume: all ranks have resumed at a step of an earlier attempt."""
        self._resumed = resumed

    def adopt(self, pages: Sequence[tuple[int, Page]]) -> None:
        """Take up an attempt that another head has watched, which has told what was complete by then."""
        steps = [page.resumed[1] for _, page in pages]
        self._resumed = min(steps, default=None)
        self._is_told = self._are_all_final(_read(pages))

    def look(self, pages: Iterable[tuple[int, Page]], now: float, *, is_over: bool) -> ResumeProof | None:
        """Return the answer once there is one, a single time; a difference is returned after any other answer, too.

        Args:
            pages: the pages that speak of the attempt, with their ranks.
            now: monotonic seconds.
            is_over: some rank has ended, so that others may wait for it in vain: what is known by now is the answer.
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
        elif self._is_told or not (is_complete or (is_over and proofs)):
            return None
        answer = conclude(self._resumed, proofs, self._ranks)
        self._is_told = True
        self._resumed = None if is_complete else self._resumed
        return answer

    def _are_all_final(self, proofs: Mapping[int, Proof]) -> bool:
        return len(proofs) == self._ranks and all(proof.verdict.is_final for proof in proofs.values())


def _read(pages: Iterable[tuple[int, Page]]) -> dict[int, Proof]:
    """Return the records of the ranks that have written one: a rank's library may be older than such records."""
    records = ((rank, told_proof(page)) for rank, page in pages)
    return {rank: proof for rank, proof in records if proof.verdict is not ProofVerdict.NONE}


# --- words ------------------------------------------------------------------------------------------------


def describe_proof(proof: ResumeProof, name: str = "") -> str:
    """Return the answer in one sentence for people.

    name: of the parameter or the object that differs; empty: it is not known.
    """
    at = proof.resumed
    if proof.answer is ProofAnswer.UNVERIFIED:
        return f"resumed at step {at}: not verified; no step was made again that could be compared"
    if proof.deviation is None:
        again = "the step made again was" if proof.steps == 1 else f"the {proof.steps} steps made again were"
        return f"resumed at step {at}: verified; {again} the same{_on_how_many(proof)}"
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
    if proof.compared == proof.ranks:
        return ""
    return f" on {proof.compared} of {proof.ranks} ranks; the others had nothing to compare"


def describe_deviation(deviation: Deviation, name: str = "") -> str:
    """Return what was not the same, as words that begin with "with". name: see describe_proof."""
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
    """Return both values in brackets, with as many digits as tell them apart; empty where they are not known."""
    before, now = deviation.before, deviation.now
    if not isfinite(before) and not isfinite(now):
        return ""
    digits = _SHORT_DIGITS if f"{before:.{_SHORT_DIGITS}g}" != f"{now:.{_SHORT_DIGITS}g}" else _EXACT_DIGITS
    return f" ({before:.{digits}g} before, {now:.{digits}g} now)"
