"""Trains three folds with the Trainer, each whose file is not there yet: `hf_folds.py OUT [named]`.

KILLED_IN=n: the rank is killed in the fourth step of that fold in attempt 0.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import ftlaunch_hooks as ft

OUT, NAMED = Path(sys.argv[1]), "named" in sys.argv


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.linear(x).square().mean()}


class Dies(TrainerCallback):
    def __init__(self, fold: int) -> None:
        self.fold = fold

    def on_step_end(self, args, state, control, **_) -> None:  # type: ignore[no-untyped-def]
        if state.global_step == 4 and os.environ.get("KILLED_IN") == str(self.fold) and not int(ATTEMPT):
            os.kill(os.getpid(), signal.SIGKILL)


ATTEMPT = os.environ.get("FTLAUNCH_ATTEMPT", "0")
OUT.mkdir(exist_ok=True)
for fold in range(3):
    weights = OUT / f"fold{fold}.pt"
    if weights.exists():
        continue
    torch.manual_seed(fold)
    data = [{"x": torch.randn(4)} for _ in range(24)]
    args = TrainingArguments(
        str(OUT / f"fold{fold}"), max_steps=6, per_device_train_batch_size=2, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, seed=fold,
    )  # fmt: skip
    trainer = Trainer(Net(), args, train_dataset=data, callbacks=[Dies(fold)])
    ft.transformers.wrap(trainer, training=f"fold {fold}" if NAMED else "").train()
    torch.save(trainer.model.state_dict(), weights)
