"""A tiny GPT-2 trained by Hugging Face's Trainer: `hf.py OUT KIND [OPTION=VALUE...]`.

KIND: `plain`, `grouped`, `lora`, `sft`, `dpo`, `grpo`, `said` (what a callback keeps), `short` (a callback ends the
epochs), `fp16` (on a CPU, with a scaler that skips steps and grows), `stream`, `streaming`, `mlm`, `noisy` (see
hf_data.py), `trainings` (three, one after the other: of two Trainers, and of the second one again; at faults the steps
of the second count from 100, those of the third from 200). Options are arguments of TrainingArguments as JSON, or ours:
`rows`, `patience` (of early stopping), `nap` (seconds a step), `seed_of_base`, `seed_of_data`, `draws` (see
hf_data.py), `prompts` and `streams` (of `sft`), `plain` (not wrapped). With `fsdp` the weights are not tied, and with
DeepSpeed's ZeRO 3 `total_flos` is left out: it counts the parameters that lie gathered, which are others in the first
step of a process.
Faults are those of faults.py, each of a step; WHERE: when the optimizer is about to make it (`kill`), in its
evaluation (`eval`), at its save (`save`), at the end of its epoch (`epoch`), or behind the loop (`end`).
Left in OUT: `final_<rank>` (digest of the weights), `history_<rank>` (log_history without times), `fired`, and a line
in `steps_<rank>` for each optimizer step.
"""

import hashlib
import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from accelerate import DistributedType, PartialState
from faults import strike
from hf_data import data_of, rows_of, tokenizer
from torch.distributed.tensor import DTensor
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import ftlaunch_hooks as ft

OUT, KIND = Path(sys.argv[1]), sys.argv[2]
OPTIONS = {key: json.loads(value) for key, _, value in (word.partition("=") for word in sys.argv[3:])}
RANK = int(os.environ.get("RANK", "0"))
NAP, BASE = OPTIONS.pop("nap", 0), OPTIONS.pop("seed_of_base", 3)
OUT.mkdir(parents=True, exist_ok=True)


class Faults(TrainerCallback):
    """What happens, and what is told of the steps."""

    before = 0

    def on_pre_optimizer_step(self, args, state, control, **_):
        strike("kill", self.before + state.global_step)
        with (OUT / f"steps_{RANK}").open("a") as file:
            file.write(f"{self.before + state.global_step}\n")

    def on_step_begin(self, args, state, control, **_):
        time.sleep(NAP)

    def on_train_end(self, args, state, control, **_):
        strike("end", self.before + state.global_step)

    def on_prediction_step(self, args, state, control, **_):
        strike("eval", self.before + state.global_step)

    def on_epoch_end(self, args, state, control, **_):
        strike("epoch", self.before + state.global_step)

    def on_save(self, args, state, control, **_):
        strike("save", self.before + state.global_step)


class Counts(TrainerCallback):
    """Keeps what nobody saves."""

    seen = 0

    def on_step_end(self, args, state, control, **_):
        self.seen += 1


class EndsEpochs(TrainerCallback):
    """Before their last batch."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step % 5 == 0:
            control.should_epoch_stop = True


def padded(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in batch)
    ids = torch.stack(
        [torch.nn.functional.pad(row["input_ids"], (0, longest - len(row["input_ids"]))) for row in batch]
    )
    return {"input_ids": ids, "labels": ids.clone()}


def model() -> GPT2LMHeadModel:
    torch.manual_seed(BASE)
    tied = "fsdp" not in OPTIONS  # FSDP2 refuses tied weights
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, tie_word_embeddings=tied))


def even_words(completions: list[str], **_: object) -> list[float]:
    return [float(sum(int(word[1:]) % 2 == 0 for word in one.split())) for one in completions]


def of_trl(net: GPT2LMHeadModel, given: dict[str, Any], callbacks: list[TrainerCallback]) -> Trainer:
    import trl
    from datasets import Dataset

    generator = torch.Generator().manual_seed(4)
    prompts, streams = given.pop("prompts", False), given.pop("streams", False)

    def some() -> int:
        return int(torch.randint(3, 9, (1,), generator=generator))

    def text(length: int) -> str:
        return " ".join(f"w{int(n)}" for n in torch.randint(3, 64, (length,), generator=generator))

    both = {
        "sft": lambda: {"prompt": text(4), "completion": text(5)} if prompts else {"text": text(some())},
        "dpo": lambda: {"prompt": text(4), "chosen": text(3), "rejected": text(5)},
        "grpo": lambda: {"prompt": text(4)},
    }
    data = Dataset.from_list([both[KIND]() for _ in range(20)])
    own = {"max_completion_length": 6} if KIND == "grpo" else {"max_length": 12}
    config = {"sft": trl.SFTConfig, "dpo": trl.DPOConfig, "grpo": trl.GRPOConfig}[KIND]
    args = config(output_dir=str(OUT / "trainer"), **own, **given)
    kind = {"sft": trl.SFTTrainer, "dpo": trl.DPOTrainer, "grpo": trl.GRPOTrainer}[KIND]
    reference = {"dpo": {"ref_model": model()}, "grpo": {"reward_funcs": even_words}}.get(KIND, {})
    evaluated = data.select(range(4))
    data = data.to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=6) if streams else data
    more: dict[str, Any] = {"processing_class": tokenizer(), "callbacks": callbacks, **reference}
    return kind(net, args=args, train_dataset=data, eval_dataset=evaluated, **more)


def with_scaler(trainer: Trainer) -> Trainer:
    """Accelerate refuses fp16 on a CPU, where torch has both: autocast to fp16, and a GradScaler."""
    trainer.accelerator.state._mixed_precision, trainer.accelerator.native_amp = "fp16", True
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
    return trainer


def arguments(given: dict[str, Any]) -> TrainingArguments:
    """Accelerate takes FSDP and DeepSpeed on accelerators only: it is told that the ranks are on some."""
    args = TrainingArguments(output_dir=str(OUT / "trainer"), **given)
    if args.fsdp or args.deepspeed:
        assert args.device.type == "cpu"  # the group of processes is made as one asks
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return args


def made() -> Trainer:
    options = dict(OPTIONS)
    patience, _ = options.pop("patience", 0), options.pop("plain", 0)
    number, seed, draws = options.pop("rows", 48), options.pop("seed_of_data", 3), options.pop("draws", "")
    given = {
        "max_steps": 12, "per_device_train_batch_size": 2, "logging_steps": 2, "learning_rate": 1e-2,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True,
    } | options  # fmt: skip
    if KIND == "grouped":
        newer = "train_sampling_strategy" in TrainingArguments.__dataclass_fields__
        given |= {"train_sampling_strategy": "group_by_length"} if newer else {"group_by_length": True}
    callbacks = [Faults(), *([EarlyStoppingCallback(patience)] if patience else [])]
    callbacks += {"said": [Counts()], "short": [EndsEpochs()]}.get(KIND, [])
    net = model()
    if KIND == "lora":
        from peft import LoraConfig, get_peft_model

        net = get_peft_model(net, LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True))
    if KIND in ("sft", "dpo", "grpo"):
        return of_trl(net, given, callbacks)
    args = arguments(given)
    data, collator = data_of(KIND, number, seed, draws)
    evaluated = rows_of(6, 2, KIND == "grouped")
    trainer = Trainer(
        net, args, data_collator=collator or padded, train_dataset=data, eval_dataset=evaluated, callbacks=callbacks
    )
    return with_scaler(trainer) if KIND == "fp16" else trainer


def gathered(trainer: Trainer) -> AbstractContextManager[Any]:
    """Within it all ranks have all parameters: of ZeRO 3 each has a part."""
    if not trainer.is_deepspeed_enabled:
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([*trainer.model.parameters()])


def log_of(trainer: Trainer) -> list[dict[str, Any]]:
    """Without times."""
    timed = ("runtime", "per_second", "step_time", "preparation_time")
    timed += ("total_flos",) * ('"stage": 3' in json.dumps(OPTIONS.get("deepspeed")))
    return [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in trainer.state.log_history]


def failing(trainer: Trainer) -> Trainer:
    """Its training does not come to its end."""

    def step(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    trainer.training_step = step
    return trainer


def main() -> None:
    plain = "plain" in OPTIONS
    trainer = made()
    if not plain:
        trainer = ft.transformers.wrap(trainer)
    digest, history = hashlib.sha256(), []
    if KIND == "said":
        trainer.train(resume_from_checkpoint=True)
        with suppress(ZeroDivisionError):
            ft.transformers.wrap(failing(made())).train()
    if KIND == "trainings":
        trainer.train()
        history += log_of(trainer)
        Faults.before, net, trainer = 100, trainer.model, made()
        trainer.model.transformer.wte = net.transformer.wte
        trainer = trainer if plain else ft.transformers.wrap(trainer)
        trainer.train()
        history += log_of(trainer)
        Faults.before = 200
    trainer.train()
    with gathered(trainer):
        for name, tensor in sorted(trainer.model.state_dict().items()):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            digest.update(name.encode() + whole.float().numpy().tobytes())
    (OUT / f"final_{RANK}").write_text(digest.hexdigest())
    history += log_of(trainer)
    if trainer.accelerator.scaler is not None:
        history.append(trainer.accelerator.scaler.state_dict())
    (OUT / f"history_{RANK}").write_text(json.dumps(history, indent=1))
    if torch.distributed.is_initialized():
        # A thread of gloo's that drops its last work waits for the interpreter's lock, and the end of the group, which
        # is that of the model at the latest, waits for the thread with that lock: torch 2.13 hangs there now and then.
        time.sleep(0.5)
        torch.distributed.destroy_process_group()


main()
