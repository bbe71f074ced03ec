"""What is not exact is said once, and what cannot be kept safe is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.kit import environment
from tests.support.harness import JOBS

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The job without a supervisor."""
    command = [sys.executable, str(JOBS / "hf.py"), str(home / "out"), *words]
    env = {**environment(), "FTLAUNCH_CHECKPOINT_DIR": str(home / "checkpoints")}
    return subprocess.run(command, check=False, cwd=home, env=env, capture_output=True, text=True, timeout=150)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_not_exact_is_said_once(tmp_path: Path, workers: int) -> None:
    done = run(tmp_path, "said", "max_steps=10", "rows=8", "ignore_data_skip=true", f"dataloader_num_workers={workers}")
    assert done.returncode == 0, done.stderr
    where = "in a worker of the DataLoader" if workers else "in the training process"
    for words in (
        f"random numbers are drawn where a batch is made ({where})",
        "`Counts.seen` changes in training and is not saved",
        "a callback has ended an epoch early",
        "ignore_data_skip is set",
        "yet: the training begins",
    ):
        assert done.stderr.count(words) == 1, (words, done.stderr)
    again = "train() is called a second time: this training is not kept safe"
    assert done.stderr.count(again) == 2  # of another Trainer, and of the same one
    assert "order of the data of a DataLoader" not in done.stderr


@pytest.mark.refused("Transformers", "`auto_find_batch_size`")
@pytest.mark.slow
def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "plain", "auto_find_batch_size=true")
    assert done.returncode == 1
    assert "cannot keep this Trainer: its argument `auto_find_batch_size` is set" in done.stderr


@pytest.mark.refused("TRL", "its other trainers", "GRPO with vLLM")
@pytest.mark.long
def test_trainers_that_keep_something_between_steps_are_refused() -> None:
    trl = pytest.importorskip("trl")
    from ftlaunch_hooks.adapters.transformers.inside import check_kind

    class Own(trl.SFTTrainer):  # type: ignore[misc, name-defined]
        """Of the script."""

    class Loop(Own):
        def train(self) -> None: ...

    for kept in (trl.SFTTrainer, trl.DPOTrainer, Own):
        check_kind(kept.__new__(kept))
    with pytest.raises(RuntimeError, match="what TRL's RLOOTrainer keeps from one step to the next"):
        check_kind(trl.RLOOTrainer.__new__(trl.RLOOTrainer))
    served = trl.GRPOTrainer.__new__(trl.GRPOTrainer)
    served.use_vllm = True
    with pytest.raises(RuntimeError, match="`use_vllm` is set: vLLM draws random numbers of its own"):
        check_kind(served)
    with pytest.raises(RuntimeError, match=r"Loop has a train\(\) of its own"):
        check_kind(Loop.__new__(Loop))


@pytest.mark.slow
def test_another_base_and_more_steps(tmp_path: Path) -> None:
    """From storage: a run of 4 steps is asked for 8, and once more with another base model."""
    pytest.importorskip("peft")
    for steps in ("4", "4", "8"):
        done = run(tmp_path, "lora", f"max_steps={steps}")
        assert done.returncode == 0, done.stderr
    assert "max_steps and num_train_epochs are [8, 3.0] now, and were [4, 3.0]" in done.stderr
    assert len((tmp_path / "out/steps_0").read_text().split()) == 8
    done = run(tmp_path, "lora", "max_steps=8", "seed_of_base=9")
    assert "the frozen parameters of the model are not those with which the job began" in done.stderr
    assert done.returncode == 1
