"""Trainings of one script with the same names and shapes, of which it leaves out those that are over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adapters.kit import WITH_TRAINER
from tests.support.harness import JOBS, FtJob
from tests.support.packages import require

require("transformers", reason="Transformers is not installed (make frameworks)")
pytestmark = pytest.mark.long


def folds(job: FtJob, out: Path, *words: str, killed_in: str = "") -> dict[str, Any]:
    """Train the folds; returns the weights by file."""
    options = (*WITH_TRAINER, "--max-restarts", "1", "--memory-interval", "1", "--fresh")
    job.start(*options, script=JOBS / "hf_folds.py", args=(str(out), *words), ranks=1, env={"KILLED_IN": killed_in})
    job.wait()
    return {path.name: torch.load(path)["linear.weight"].tolist() for path in out.glob("fold*.pt")}


@pytest.mark.slow
def test_with_a_word_each_it_goes_on_in_the_right_one(job: FtJob, tmp_path: Path) -> None:
    calm = folds(job, tmp_path / "calm", "named")
    assert job.wait() == 0, job.stderr
    disturbed = folds(job, tmp_path / "disturbed", "named", killed_in="1")
    assert job.wait() == 0, job.stderr
    assert [event["step"] for event in job.events("resumed")][-2:] == [0, 10]
    assert len(calm) == 3
    assert disturbed == calm


def test_without_words_another_folder_is_another_training(job: FtJob, tmp_path: Path) -> None:
    """Taken out: the second fold gets the weights of the first one, and the third those of the second."""
    assert len(folds(job, tmp_path / "disturbed", killed_in="1")) == 1
    assert job.wait() == 1
    assert "training 2 of this process has no word of its own" in job.stdout
    where = tmp_path / "disturbed"
    assert (
        f"cannot resume: the training that is over wrote to {where / 'fold0'}, and this one writes to {where / 'fold1'}"
    ) in job.stderr
