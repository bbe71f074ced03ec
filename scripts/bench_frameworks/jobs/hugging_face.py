"""A small GPT-2 under Hugging Face's Trainer: `hugging_face.py KEPT_BY STEPS WIDTH`.

KEPT_BY is `hooks` (ftlaunch_hooks), `file` (the Trainer's own checkpoint at every step) or `nothing`.
Rank 1 kills itself once the file `<BENCH_NOTES>.kill` exists. Rank 0 notes each step as it ends.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from notes import RANK, note
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

KEPT_BY = sys.argv[1]
STEPS = int(sys.argv[2])
WIDTH = int(sys.argv[3])
ORDER = Path(os.environ["BENCH_NOTES"] + ".kill")


class Notes(TrainerCallback):
    """Notes the ends of steps, and kills rank 1 on order."""

    def on_pre_optimizer_step(self, args, state, control, **_):
        if RANK == 1 and ORDER.exists():
            ORDER.unlink()
            note("dies", state.global_step)
            os.kill(os.getpid(), signal.SIGKILL)

    def on_step_end(self, args, state, control, **_):
        if RANK == 0:
            note("step", state.global_step)


torch.manual_seed(0)
tokens = torch.randint(0, 64, (4096, 32))
config = GPT2Config(vocab_size=64, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
args = TrainingArguments(
    "out",
    max_steps=STEPS,
    per_device_train_batch_size=8,
    save_strategy="steps" if KEPT_BY == "file" else "no",
    save_steps=1,
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
data = [{"input_ids": row, "labels": row} for row in tokens]
trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=data, callbacks=[Notes()])
if KEPT_BY == "hooks":
    import ftlaunch_hooks as ft

    trainer = ft.transformers.wrap(trainer)
saved = KEPT_BY == "file" and any(Path("out").glob("checkpoint-*"))
trainer.train(resume_from_checkpoint=True if saved else None)
