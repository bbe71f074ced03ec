"""What a rank says of a resume is read as it was written."""

from __future__ import annotations

import math
from pathlib import Path

from ftlaunch_contract.pages.page import Page, create_page
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, read_proof, write_proof


def test_a_proof_is_read_as_it_was_told_and_a_new_process_says_nothing_yet(tmp_path: Path) -> None:
    create_page(tmp_path / "page")
    page = Page(tmp_path / "page")
    assert read_proof(page).verdict is ProofVerdict.NONE
    told = Proof(
        ProofVerdict.DIFFERENT, step=12, steps=2, ahead=5, what=ProofPart.PARAMETER, before=0.25, now=-1e-9, parameter=3
    )
    write_proof(page, told)
    assert read_proof(page) == told
    page.begin(1, 1, 1)
    assert read_proof(page).verdict is ProofVerdict.NONE
    page.close()


def test_only_an_answer_is_final() -> None:
    open_ones = [verdict for verdict in ProofVerdict if not verdict.is_final]
    assert open_ones == [ProofVerdict.NONE, ProofVerdict.AHEAD]


def test_what_is_no_number_is_told_as_none() -> None:
    assert math.isnan(Proof(ProofVerdict.SAME).before)
