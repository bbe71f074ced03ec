"""Hugging Face's Trainer is killed in every phase, and ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
from importlib.util import find_spec

import pytest
from tests.adapters.kit import FrameworkJob
from tests.adapters.versions import FSDP_ON_CPU, LORA_IN_ZERO, PACKED_STREAMS
from tests.support.harness import FtJob
from tests.support.packages import require

from ftlaunch_contract.checkpoint import layout

require("transformers", reason="Transformers is not installed (make frameworks)")
require("accelerate", reason="Accelerate is not installed (make frameworks)")
pytestmark = pytest.mark.long

EVALUATES = ('eval_strategy="steps"', "eval_steps=2")
SAVES = (*EVALUATES, 'save_strategy="steps"', "save_steps=2", "load_best_model_at_end=true")
EPOCHS = ("num_train_epochs=2", "max_steps=-1", 'eval_strategy="epoch"', 'logging_strategy="epoch"')

OFTEN = ("everything",)  # in CI
NO_ENGINE = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed (make deepspeed)")


def zero(stage: int, *offloaded: str) -> str:
    """DeepSpeed's settings as users of the Trainer write them. offloaded: to the processor's memory."""
    auto = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    optimization = {"stage": stage, **{f"offload_{what}": {"device": "cpu"} for what in offloaded}}
    settings = {"zero_optimization": optimization, "bf16": {"enabled": "auto"}, **dict.fromkeys(auto, "auto")}
    return f"deepspeed={json.dumps({**settings, 'zero_force_ds_cpu_optimizer': False})}"


# name: ranks, faults (one an attempt), kind and options
SHAPES: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "plain": (1, "kill 0 4;kill 0 5;end 0 7", ("plain", "max_steps=7", "rows=10")),
    "everything": (
        2,
        "kill 1 3;eval 0 4;epoch 1 6",
        ("plain", "rows=24", "max_steps=8", "gradient_accumulation_steps=2", *EVALUATES, "dataloader_num_workers=1"),
    ),
    "grouped": (1, "kill 0 4;epoch 0 6;kill 0 9", ("grouped", "rows=12", "max_steps=11")),
    "best": (1, "save 0 4;eval 0 6;kill 0 7", ("plain", "rows=12", "max_steps=8", *SAVES)),
    "stopped": (
        1,
        "eval 0 4;kill 0 5",
        ("plain", "rows=12", "max_steps=40", "patience=2", "learning_rate=1.0", *SAVES),
    ),
    "bf16": (2, "kill 1 3;kill 0 6", ("plain", "rows=24", "max_steps=8", "bf16=true", *EVALUATES)),
    "fp16": (2, "kill 1 4;kill 0 7;kill 0 8", ("fp16", "rows=24", "max_steps=12", "logging_steps=1")),
    "fsdp": (
        2,
        "kill 1 3;eval 0 4;epoch 1 6",
        ("plain", "rows=24", "max_steps=8", "gradient_accumulation_steps=2", "fsdp=true", *EVALUATES),
    ),
    "zero2": (2, "kill 1 3;kill 0 6", ("plain", "rows=24", "max_steps=8", "bf16=true", zero(2))),
    "zero3": (
        2,
        "kill 1 3;eval 0 4;epoch 1 6",
        ("plain", "rows=24", "max_steps=8", "gradient_accumulation_steps=2", zero(3), *EVALUATES),
    ),
    "zero2 offloaded": (2, "kill 1 3;kill 0 6", ("plain", "rows=24", "max_steps=8", "bf16=true", zero(2, "optimizer"))),
    "zero3 offloaded": (
        2,
        "kill 1 3;eval 0 4",
        ("plain", "rows=24", "max_steps=8", zero(3, "optimizer", "param"), *EVALUATES),
    ),
    "trainings": (1, "kill 0 100;kill 0 103;end 0 107;kill 0 204", ("trainings", "max_steps=7", "rows=10")),
    "trainings of two": (
        2,
        "epoch 1 6;kill 1 105;kill 0 203;end 0 208",
        ("trainings", "rows=24", "max_steps=8", "gradient_accumulation_steps=2", *EVALUATES),
    ),
    "epochs": (1, "epoch 0 6;eval 0 12", ("plain", "rows=12", "eval_on_start=true", *EPOCHS)),
}


def marks_of(name: str) -> tuple[pytest.MarkDecorator, ...]:
    marks = (NO_ENGINE,) * name.startswith("zero") + (pytest.mark.slow,) * (name not in OFTEN)
    return marks + (FSDP_ON_CPU,) * (name == "fsdp")


@pytest.mark.exact(
    "Transformers",
    "accumulation",
    "evaluation",
    "loader workers",
    "`group_by_length`",
    "`load_best_model_at_end`",
    "early stopping",
    "several ranks",
    "several trainings",
    "BF16, and FP16 with its scaler",
    "FSDP2",
    "DeepSpeed",
)
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in SHAPES])
def test_killed_it_ends_as_the_undisturbed_run(job: FtJob, name: str) -> None:
    """Taken out: without the numbers with which a pass began `grouped` differs, without the scaler `fp16`.

    With the boundary at on_step_end `best` and `epochs` do.
    """
    ranks, faults, words = SHAPES[name]
    run = FrameworkJob("hf.py", job, *words, ranks=ranks)
    undisturbed = run.undisturbed()
    run.env["TMPDIR"] = str(job.home)
    run.start(faults)
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == faults.count(";") + 1
    assert not list(job.home.glob("ftlaunch-*")), "a killed rank has left its position"
    run.assert_same(undisturbed)
    assert len(job.events("incident")) == len(job.fired())
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "noisy", "streaming"])
def test_told_to_stop_and_its_supervisor_killed(job: FtJob, kind: str) -> None:
    """SIGTERM ends it with 75, and the same command goes on; so it does where the supervisor is killed."""
    run = FrameworkJob("hf.py", job, kind, "max_steps=60", "rows=40")
    undisturbed = run.undisturbed()
    nap = ("nap=0.1",)
    run.start(more=nap)
    job.wait_step(5)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    run.start(more=nap)
    job.wait_step(12)
    job.supervisor.kill()
    job.wait()
    run.start("kill 0 40", more=("nap=0",))
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["kill 0 40 0"]
    run.assert_same(undisturbed)
    job.assert_clean()


@pytest.mark.exact("Transformers", "LoRA")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (1, ()),
        pytest.param(2, ("fsdp=true",), marks=FSDP_ON_CPU),
        pytest.param(2, ("bf16=true", zero(2)), marks=[NO_ENGINE, LORA_IN_ZERO]),
    ],
)
def test_of_adapters_the_base_is_not_saved(job: FtJob, ranks: int, words: tuple[str, ...]) -> None:
    """Taken out: with the whole model the checkpoint holds the base's 61 KB."""
    pytest.importorskip("peft", reason="PEFT is not installed (make frameworks)")
    run = FrameworkJob("hf.py", job, "lora", "max_steps=8", *words, ranks=ranks)
    undisturbed = run.undisturbed()
    run.start("kill 0 3;kill 0 6")
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == 2
    run.assert_same(undisturbed)
    (_, directory), *_ = layout.list_iterations(job.run_dir / "checkpoints")
    saved = json.loads((directory / "metadata.json").read_text())
    parameters = [key for key in saved["tensors"] if not key.endswith(":nonpersistent")]
    model = [key for key in parameters if key.startswith("model.")]
    assert model
    assert all("lora_" in key for key in model), model


@pytest.mark.exact("TRL", "SFTTrainer", "DPOTrainer")
@pytest.mark.parametrize("kind", ["sft", "dpo"])
@pytest.mark.slow
def test_trainers_of_trl(job: FtJob, kind: str) -> None:
    """Their metrics between two logs are saved. Taken out: without inside._METRICS the logs differ."""
    pytest.importorskip("trl", reason="TRL is not installed (make frameworks)")
    run = FrameworkJob("hf.py", job, kind, "max_steps=9", "logging_steps=3", 'eval_strategy="steps"', "eval_steps=5")
    undisturbed = run.undisturbed()
    run.start("kill 0 2;kill 0 7")
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == 2
    run.assert_same(undisturbed)


@pytest.mark.exact("TRL", "packing", "loss of completions only", "streams")
@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (1, ("packing=true",)),
        pytest.param(2, ("packing=true", "streams=true"), marks=PACKED_STREAMS),
        (1, ("prompts=true", "completion_only_loss=true", "streams=true", "dataloader_num_workers=1")),
    ],
)
@pytest.mark.slow
def test_texts_packed_and_masked(job: FtJob, ranks: int, words: tuple[str, ...]) -> None:
    """Over several passes. Taken out: with the place that the Trainer finds itself `completion_only_loss` differs."""
    pytest.importorskip("trl", reason="TRL is not installed (make frameworks)")
    run = FrameworkJob("hf.py", job, "sft", "max_steps=13", "logging_steps=3", *words, ranks=ranks)
    undisturbed = run.undisturbed()
    run.start("kill 0 2;kill 0 11")
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == 2
    run.assert_same(undisturbed)
    assert "not exact" not in job.log(1, 0) + job.log(2, 0)


GRPO = (
    "grpo", "max_steps=9", "num_generations=2", "steps_per_generation=2", "num_iterations=2", "beta=0.0",
    "log_completions=true", "gradient_accumulation_steps=1", "logging_steps=3",
)  # fmt: skip


@pytest.mark.exact("TRL", "GRPOTrainer with its rollouts")
@pytest.mark.parametrize(("ranks", "faults"), [(1, "kill 0 2;kill 0 5;kill 0 7"), (2, "kill 1 3;kill 0 6")])
@pytest.mark.slow
def test_rollouts_of_grpo(job: FtJob, ranks: int, faults: str) -> None:
    """Each is trained on in four steps, and killed among these. Taken out: without `_buffered_inputs` it differs."""
    pytest.importorskip("trl", reason="TRL is not installed (make frameworks)")
    run = FrameworkJob("hf.py", job, *GRPO, ranks=ranks)
    undisturbed = run.undisturbed()
    run.start(faults)
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == faults.count(";") + 1
    run.assert_same(undisturbed)
    job.assert_clean()
