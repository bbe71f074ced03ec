"""A tiny GPT-2 trained by Hugging Face's Trainer: `hf.py OUT KIND [OPTION=VALUE...]`.

KIND: `plain`, `grouped`, `lora`, `sft`, `dpo`, `grpo`, `said` (whatever is told of). Options are arguments of
TrainingArguments as JSON, or ours: `rows`, `patience` (of early stopping), `nap` (seconds a step), `seed_of_base`,
`plain` (not wrapped).
FAULT="KIND RANK STEP; ...": what happens in attempt 0, 1, ... when the optimizer is about to make that step (`kill`),
in its evaluation (`eval`), at its save (`save`), at the end of its epoch (`epoch`), or behind the loop (`end`).
Left in OUT: `final_<rank>` (digest of the weights), `history_<rank>` (log_history without times), `fired`, and a line
in `steps_<rank>` for each optimizer step.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import ftlaunch_hooks as ft

OUT, KIND = Path(sys.argv[1]), sys.argv[2]
OPTIONS = {key: json.loads(value) for key, _, value in (word.partition("=") for word in sys.argv[3:])}
RANK, ATTEMPT = int(os.environ.get("RANK", "0")), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
PLAN = dict(enumerate(os.environ.get("FAULT", "").split(";")))
FAULT, *WHERE = PLAN.get(ATTEMPT, "").split() or ["none"]
AT_RANK, AT_STEP = map(int, WHERE or (-1, -1))
NAP, BASE = OPTIONS.pop("nap", 0), OPTIONS.pop("seed_of_base", 3)
OUT.mkdir(parents=True, exist_ok=True)


def fire() -> None:
    with (OUT / "fired").open("a") as file:
        file.write(f"{FAULT} {RANK} {ATTEMPT}\n")
    os.kill(os.getpid(), signal.SIGKILL)


class Faults(TrainerCallback):
    """What happens, and what is told of the steps."""

    def _meets(self, kind: str, step: int) -> None:
        if (kind, RANK, step) == (FAULT, AT_RANK, AT_STEP):
            fire()

    def on_pre_optimizer_step(self, args, state, control, **_):
        self._meets("kill", state.global_step)
        with (OUT / f"steps_{RANK}").open("a") as file:
            file.write(f"{state.global_step}\n")

    def on_step_begin(self, args, state, control, **_):
        time.sleep(NAP)

    def on_train_end(self, args, state, control, **_):
        self._meets("end", state.global_step)

    def on_prediction_step(self, args, state, control, **_):
        self._meets("eval", state.global_step)

    def on_epoch_end(self, args, state, control, **_):
        self._meets("epoch", state.global_step)

    def on_save(self, args, state, control, **_):
        self._meets("save", state.global_step)


class Counts(TrainerCallback):
    """Keeps what nobody saves, and ends its first epoch early."""

    seen = 0

    def on_step_end(self, args, state, control, **_):
        self.seen += 1
        control.should_epoch_stop = state.global_step == 5


def rows(number: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(number):
        length = int(torch.randint(4, 12, (1,), generator=generator)) if KIND == "grouped" else 8
        ids = torch.randint(0, 64, (length,), generator=generator)
        found.append({"input_ids": ids, "labels": ids.clone()})
    return found


def padded(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in batch)
    if KIND == "said":
        torch.rand(1)
    ids = torch.stack(
        [torch.nn.functional.pad(row["input_ids"], (0, longest - len(row["input_ids"]))) for row in batch]
    )
    return {"input_ids": ids, "labels": ids.clone()}


def model() -> GPT2LMHeadModel:
    torch.manual_seed(BASE)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def even_words(completions: list[str], **_: object) -> list[float]:
    return [float(sum(int(word[1:]) % 2 == 0 for word in one.split())) for one in completions]


def of_trl(net: GPT2LMHeadModel, given: dict[str, object], callbacks: list[TrainerCallback]) -> Trainer:
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(64)}
    plain = Tokenizer(models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="w1", pad_token="w2", unk_token="w0")
    generator = torch.Generator().manual_seed(4)

    def text(length: int) -> str:
        return " ".join(f"w{int(n)}" for n in torch.randint(3, 64, (length,), generator=generator))

    both = {
        "sft": lambda: {"text": text(8)},
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
    more: dict[str, Any] = {"processing_class": tokenizer, "callbacks": callbacks, **reference}
    return kind(net, args=args, train_dataset=data, eval_dataset=evaluated, **more)


def made() -> Trainer:
    patience, _ = OPTIONS.pop("patience", 0), OPTIONS.pop("plain", 0)
    number = OPTIONS.pop("rows", 48)
    given = {
        "max_steps": 12, "per_device_train_batch_size": 2, "logging_steps": 2, "learning_rate": 1e-2,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True,
    } | OPTIONS  # fmt: skip
    if KIND == "grouped":
        given["train_sampling_strategy"] = "group_by_length"
    callbacks = [Faults(), *([EarlyStoppingCallback(patience)] if patience else [])]
    callbacks += [Counts()] if KIND == "said" else []
    net = model()
    if KIND == "lora":
        from peft import LoraConfig, get_peft_model

        net = get_peft_model(net, LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True))
    if KIND in ("sft", "dpo", "grpo"):
        return of_trl(net, given, callbacks)
    args = TrainingArguments(output_dir=str(OUT / "trainer"), **given)
    return Trainer(
        net, args, data_collator=padded, train_dataset=rows(number, 1), eval_dataset=rows(6, 2), callbacks=callbacks
    )


def main() -> None:
    plain = "plain" in OPTIONS
    trainer = made()
    if not plain:
        trainer = ft.transformers.wrap(trainer)
    if KIND == "said":
        trainer.train(resume_from_checkpoint=True)
        ft.transformers.wrap(made()).train()
    trainer.train()
    digest = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    (OUT / f"final_{RANK}").write_text(digest.hexdigest())
    timed = ("runtime", "per_second", "step_time")
    history = [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in trainer.state.log_history]
    (OUT / f"history_{RANK}").write_text(json.dumps(history, indent=1))
    if torch.distributed.is_initialized():
        # A thread of gloo's that drops its last work waits for the interpreter's lock, and the end of the group, which
        # is that of the model at the latest, waits for the thread with that lock: torch 2.13 hangs there now and then.
        time.sleep(0.5)
        torch.distributed.destroy_process_group()


main()
