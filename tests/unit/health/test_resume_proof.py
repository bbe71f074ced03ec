"""What the records of the ranks' steps made again say about a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.health.resume_proof import Deviation, ProofAnswer, ProofWatch, ResumeProof, conclude, describe_proof
from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, write_proof
from ftlaunch_contract.protocol import Resume

V = ProofVerdict
SAME = Proof(V.SAME, step=13, steps=3, ahead=3)
NOTHING = Proof(V.UNVERIFIED)
OTHER_LOSS = Proof(V.DIFFERENT, step=12, steps=2, ahead=3, what=ProofPart.LOSS, before=0.5, now=0.25)
OTHER_BATCH = Proof(V.DIFFERENT, step=12, steps=2, ahead=3, what=ProofPart.BATCH)
ROUNDED = Proof(V.ROUNDED, step=11, steps=1, ahead=3, what=ProofPart.LOSS, before=1.0, now=1.0 + 2**-50)


def pages(home: Path, ranks: int = 2) -> list[tuple[int, Page]]:
    """Return the pages of ranks that have resumed at step 10."""
    made = []
    for rank in range(ranks):
        create_page(page_path(home, rank))
        page = Page(page_path(home, rank))
        page.begin(1, 4000 + rank, 1)
        page.set_resumed(Resume.MEMORY, 10)
        made.append((rank, page))
    return made


def followed(home: Path, ranks: int = 2) -> tuple[ProofWatch, list[tuple[int, Page]]]:
    watch = ProofWatch(ranks)
    watch.begin(10)
    return watch, pages(home, ranks)


@pytest.mark.parametrize(
    ("proofs", "answer", "steps", "compared"),
    [
        ({0: SAME, 1: Proof(V.SAME, 12, 2, 2)}, ProofAnswer.SAME, 2, 2),
        ({0: SAME, 1: NOTHING}, ProofAnswer.SAME, 3, 1),
        ({0: NOTHING, 1: NOTHING}, ProofAnswer.UNVERIFIED, 0, 0),
        ({0: Proof(V.AHEAD, 12, 2, 3), 1: SAME}, ProofAnswer.SAME, 2, 2),
        ({0: Proof(V.AHEAD, 10, 0, 3), 1: Proof(V.AHEAD, 10, 0, 3)}, ProofAnswer.UNVERIFIED, 0, 0),
        ({0: SAME, 1: ROUNDED}, ProofAnswer.ROUNDED, 1, 2),
        ({0: OTHER_LOSS, 1: ROUNDED}, ProofAnswer.DIFFERENT, 1, 2),
    ],
)
def test_one_answer_of_all_ranks(proofs: dict[int, Proof], answer: ProofAnswer, steps: int, compared: int) -> None:
    found = conclude(10, proofs, 2)
    assert (found.answer, found.steps, found.compared) == (answer, steps, compared)


def test_a_batch_is_named_before_the_loss_that_it_changes() -> None:
    deviation = conclude(10, {0: OTHER_LOSS, 1: OTHER_BATCH}, 2).deviation
    assert deviation is not None
    assert (deviation.rank, deviation.what) == (1, ProofPart.BATCH)
    earlier = Proof(V.DIFFERENT, step=11, steps=1, what=ProofPart.PARAMETER, parameter=4)
    deviation = conclude(10, {0: OTHER_BATCH, 1: earlier}, 2).deviation
    assert deviation is not None
    assert (deviation.step, deviation.parameter) == (11, 4)


def test_an_answer_is_given_once_all_ranks_have_theirs_and_once_only(tmp_path: Path) -> None:
    watch, ranks = followed(tmp_path)
    assert watch.observe(ranks, 0.0, is_over=False) is None
    write_proof(ranks[0][1], SAME)
    write_proof(ranks[1][1], Proof(V.AHEAD, step=12, steps=2, ahead=3))
    assert watch.observe(ranks, 1.0, is_over=False) is None, "rank 1 has a step ahead"
    write_proof(ranks[1][1], SAME)
    found = watch.observe(ranks, 2.0, is_over=False)
    assert found == ResumeProof(ProofAnswer.SAME, 10, 3, 2, 2)
    assert watch.observe(ranks, 3.0, is_over=True) is None


def test_a_difference_waits_for_the_other_ranks_a_moment_only(tmp_path: Path) -> None:
    watch, ranks = followed(tmp_path)
    write_proof(ranks[0][1], OTHER_LOSS)
    write_proof(ranks[1][1], Proof(V.AHEAD, step=11, steps=1, ahead=3))
    assert watch.observe(ranks, 5.0, is_over=False) is None, "the cause may be seen on rank 1"
    found = watch.observe(ranks, 5.4, is_over=False)
    assert found is not None
    assert found.deviation == Deviation(12, ProofPart.LOSS, 0, -1, 0.5, 0.25)


def test_the_end_of_a_rank_ends_the_waiting(tmp_path: Path) -> None:
    watch, ranks = followed(tmp_path)
    write_proof(ranks[0][1], OTHER_LOSS)
    found = watch.observe(ranks, 5.0, is_over=True)
    assert found is not None
    assert found.answer is ProofAnswer.DIFFERENT


def test_a_difference_after_an_early_answer_is_not_lost(tmp_path: Path) -> None:
    """Taken out: rank 0 ends well, and what rank 1 finds after that was told to nobody."""
    watch, ranks = followed(tmp_path)
    write_proof(ranks[0][1], SAME)
    write_proof(ranks[1][1], Proof(V.AHEAD, step=11, steps=1, ahead=3))
    found = watch.observe(ranks, 1.0, is_over=True)
    assert found is not None
    assert (found.answer, found.steps) == (ProofAnswer.SAME, 1)
    assert watch.observe(ranks, 1.1, is_over=True) is None
    write_proof(ranks[1][1], OTHER_BATCH)
    found = watch.observe(ranks, 1.2, is_over=True)
    assert found is not None
    assert found.answer is ProofAnswer.DIFFERENT


def test_ranks_that_know_no_proof_are_not_spoken_of(tmp_path: Path) -> None:
    watch, ranks = followed(tmp_path)
    assert watch.observe(ranks, 100.0, is_over=True) is None


def test_another_head_has_told_what_was_complete(tmp_path: Path) -> None:
    ranks = pages(tmp_path)
    for _, page in ranks:
        write_proof(page, SAME)
    watch = ProofWatch(2)
    watch.adopt(ranks)
    assert watch.observe(ranks, 1.0, is_over=False) is None
    write_proof(ranks[1][1], OTHER_BATCH)
    found = watch.observe(ranks, 2.0, is_over=False)
    assert found is not None, "what differs is rather told twice than never"


@pytest.mark.parametrize(
    ("proof", "name", "sentence"),
    [
        (ResumeProof(ProofAnswer.SAME, 10, 3, 2, 2), "",
         "resumed at step 10: verified; the 3 steps made again were the same"),
        (ResumeProof(ProofAnswer.SAME, 10, 1, 2, 2), "",
         "resumed at step 10: verified; the step made again was the same"),
        (ResumeProof(ProofAnswer.SAME, 10, 3, 2, 4), "",
         "resumed at step 10: verified; the 3 steps made again were the same on 2 of 4 ranks; the others had nothing"
         " to compare"),
        (ResumeProof(ProofAnswer.UNVERIFIED, 10, 0, 0, 2), "",
         "resumed at step 10: not verified; no step was made again that could be compared"),
        (conclude(10, {0: OTHER_LOSS}, 1), "",
         "the resumed run differs: step 12 was made again on rank 0, with another loss (0.5 before, 0.25 now); the run"
         " is not exact from step 12 on"),
        (conclude(10, {1: OTHER_BATCH}, 2), "",
         "the resumed run differs: step 12 was made again on rank 1, with another batch; the run is not exact from step"
         " 12 on"),
        (conclude(10, {0: Proof(V.DIFFERENT, 12, 2, 3, ProofPart.PARAMETER, 1.0, 2.0, 0)}, 1), "fc.weight",
         "the resumed run differs: step 12 was made again on rank 0, with another value of `fc.weight` (1 before, 2"
         " now); the run is not exact from step 12 on"),
        (conclude(10, {1: Proof(V.DIFFERENT, 10, what=ProofPart.OBJECT, parameter=1)}, 2), "ema",
         "the resumed run differs: rank 1 has restored step 10, with another state of `ema` than was saved; the run is"
         " not exact from there on"),
        (conclude(10, {0: ROUNDED}, 1), "",
         "resumed at step 10: verified but for rounding; step 11 was made again on rank 0 from the same batch and"
         " random numbers, with another loss (1 before, 1.0000000000000009 now); kernels that are not"
         " deterministic do that"),
    ],
)  # fmt: skip
def test_sentences(proof: ResumeProof, name: str, sentence: str) -> None:
    assert describe_proof(proof, name) == sentence
