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


def test_both_are_options(place: Path) -> None:
    assert ask(data_checkpoint_path="ckpt").checkpoint_dir == place / "ckpt"
    assert ask("checkpoint_dir: other", data_checkpoint_path="ckpt").checkpoint_dir == place / "ckpt"
    with pytest.raises(
        SpecError, match=r"cannot use `--data-checkpoint-path a`: it is another name of `checkpoint_dir`"
    ):
        ask(data_checkpoint_path="a", checkpoint_dir="b")
    assert ask(enable_resume_training="false").saving.fresh
    assert not ask("fresh: true", enable_resume_training="true").saving.fresh


RLHF = """\
runtime_env:
  platform: DLC
  excludes: ["*pt", "logs"]
models:
  policy:
    model_config_file: old_policy_inference.yaml
    num_gpu: ${num_gpu_policy:16}
    trainable: False
  ppo_policy: {num_gpu: 16, trainable: True}
runtime:
  colocation:
    - policy,ppo_policy
  num_episode: ${num_episode:200}
  data_checkpoint_path: ${data_checkpoint_path}
  enable_resume_training: ${resume:False}
  output_dir: ${output_dir}
"""


def launch(text: str, **environ: str) -> JobSpec:
    Path("rlhf.yaml").write_text(f"script: train.py\nargs: [-c, rlhf.yaml]\n{text}")
    return resolve("rlhf.yaml", (), {}, environ)


def test_chatlearns_own_file_with_a_script_in_it(place: Path) -> None:
    job = launch(RLHF, data_checkpoint_path="/tmp/data")
    assert job.checkpoint_dir == Path("/tmp/data")
    assert job.saving.fresh
    assert job.launch.args == ("-c", "rlhf.yaml")
    assert not launch(RLHF, data_checkpoint_path="/tmp/data", resume="True").saving.fresh


@pytest.mark.parametrize("section", ["runtime", "runtime_args", "rlhf", "runtime_env"])
def test_each_version_of_its_sections(section: str, place: Path) -> None:
    text = f"{section}:\n  output_dir: out\n  data_checkpoint_path: ${{{section}.output_dir}}/data\n"
    assert launch(text).checkpoint_dir == place / "out" / "data"
    assert launch(f"{section}:\n  num_episode: 3\n").checkpoint_dir.name == "checkpoints"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "runtime:\n  data_checkpoint_path: ${data_checkpoint_path}\n",
            r"`runtime\.data_checkpoint_path` is \$\{data_checkpoint_path\}; the variable data_checkpoint_path is not"
            " set; set it, or write the value itself",
        ),
        ("runtime:\n  data_checkpoint_path: ${runtime.nothing}/x\n", "the file has no `runtime.nothing`"),
        ("rlhf:\n  data_checkpoint_path: ${rlhf.data_checkpoint_path}\n", "which refers to itself"),
        (
            "data_checkpoint_path: a\nruntime:\n  data_checkpoint_path: b\n",
            "`data_checkpoint_path` stands twice, at the top level and in `runtime`",
        ),
        (
            "runtime:\n  data_checkpoint_path: a\nrlhf:\n  data_checkpoint_path: b\n",
            "`data_checkpoint_path` stands twice, at `runtime` and in `rlhf`",
        ),
        ("runtime: 5\n", "`runtime` is not a key"),
        ("models: {}\n", "`models` is not a key"),
        ("runtime:\n  enable_resume_training: sometimes\n", "it must be true or false"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        launch(text)


def test_enable_resume_training_false_starts_over() -> None:
    assert ask("enable_resume_training: false").saving.fresh
    assert ask("enable_resume_training: False").saving.fresh
    assert ask("enable_resume_training: false", "fresh: false").saving.fresh
    assert not ask("enable_resume_training: true").saving.fresh
    assert ask("enable_resume_training: true", "fresh: true").saving.fresh
    with pytest.raises(SpecError, match="`enable_resume_training` is sometimes; it must be true or false"):
        ask("enable_resume_training: sometimes")
