"""ChatLearn's two keys mean ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.spec.job_spec import JobSpec, SpecError
from ftlaunch.spec.resolve import resolve


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def ask(*lines: str, **flags: str) -> JobSpec:
    Path("job.yaml").write_text("\n".join(["script: train.py", *lines]))
    return resolve("job.yaml", (), flags, {})


def test_data_checkpoint_path_is_where_checkpoints_go(place: Path) -> None:
    assert ask("data_checkpoint_path: ckpt").checkpoint_dir == place / "ckpt"
    assert ask("data_checkpoint_path: ckpt", "checkpoint_dir: ckpt").checkpoint_dir == place / "ckpt"
    assert ask("data_checkpoint_path: null").checkpoint_dir == ask().checkpoint_dir
    assert ask("data_checkpoint_path: ckpt", checkpoint_dir="flag").checkpoint_dir == place / "flag"


def test_two_different_folders_are_refused() -> None:
    with pytest.raises(
        SpecError, match=r"data_checkpoint_path` is a; it is another name of `checkpoint_dir`, which is b"
    ):
        ask("data_checkpoint_path: a", "checkpoint_dir: b")


def test_enable_resume_training_false_starts_over() -> None:
    assert ask("enable_resume_training: false").saving.fresh
    assert ask("enable_resume_training: False").saving.fresh
    assert ask("enable_resume_training: false", "fresh: false").saving.fresh
    assert not ask("enable_resume_training: true").saving.fresh
    assert ask("enable_resume_training: true", "fresh: true").saving.fresh
    with pytest.raises(SpecError, match="`enable_resume_training` is sometimes; it must be true or false"):
        ask("enable_resume_training: sometimes")
