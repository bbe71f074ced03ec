"""Fingerprints of steps on a GPU: gathered there, read when they have arrived, the same where a step is made again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ftlaunch_contract.pages.fingerprint_ring import FingerprintRing, StepPart, ring_path
from ftlaunch_contract.pages.page import Page, create_page
from ftlaunch_contract.pages.proof_record import Proof, ProofVerdict
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.observe.proof import seen_losses
from ftlaunch_hooks.observe.proof.parameter_samples import ParameterSamples
from ftlaunch_hooks.observe.proof.step_proof import StepProof

pytestmark = pytest.mark.gpu


def live(directory: Path, device: str, first: int, last: int, *, extra: float = 0.0) -> list[Proof]:
    """Make steps whose parameters and loss depend on the number of the step alone."""
    ends: list[Proof] = []
    page = Page(directory / "page")
    model = nn.Linear(64, 64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kind = Resume.MEMORY if first else Resume.FRESH

    def set_state(step: int) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step + 1.0 + (extra if step > first else 0.0))
        torch.manual_seed(step)

    set_state(first)
    proof = StepProof(
        {"model": model, "optimizer": optimizer},
        page=page, directory=directory, rank=0, on_end=lambda one, name: ends.append(one),
    )  # fmt: skip
    proof.begin(first, kind, directory / "copy", is_comparable=True)
    for step in range(first + 1, last + 1):
        (model(torch.ones(4, 64, device=device)).sum() * step).backward()
        set_state(step)
        proof.end_step(step, in_full=step == last)
    seen_losses.listen(None)
    page.close()
    return ends


def test_steps_made_again_on_a_gpu_are_proved(tmp_path: Path, device: str) -> None:
    create_page(tmp_path / "page")
    assert live(tmp_path, device, 0, 10) == []
    [proof] = live(tmp_path, device, 6, 10)
    assert proof.verdict is ProofVerdict.SAME
    assert proof.steps >= 1


def test_a_difference_on_a_gpu_is_found(tmp_path: Path, device: str) -> None:
    create_page(tmp_path / "page")
    live(tmp_path, device, 0, 10)
    [proof] = live(tmp_path, device, 6, 10, extra=0.5)
    assert proof.verdict is ProofVerdict.DIFFERENT


def test_the_loss_is_noted_with_the_samples(tmp_path: Path, device: str) -> None:
    create_page(tmp_path / "page")
    live(tmp_path, device, 0, 3)
    model = nn.Linear(64, 64, device=device)
    samples = ParameterSamples({"model": model})
    path = ring_path(tmp_path, 0)
    ring = FingerprintRing(path, sample_bytes=samples.bytes_needed, names_checksum=samples.checksum)
    assert ring.read()[3].parts & (StepPart.SAMPLES | StepPart.LOSS) == StepPart.SAMPLES | StepPart.LOSS
    ring.close()
