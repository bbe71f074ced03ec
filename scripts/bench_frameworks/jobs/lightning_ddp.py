"""A small model under PyTorch Lightning: `lightning_ddp.py KEPT_BY STEPS WIDTH`.

KEPT_BY is `hooks` (ftlaunch_hooks), `file` (ModelCheckpoint at every step) or `nothing`.
Rank 1 kills itself once the file `<BENCH_NOTES>.kill` exists. Rank 0 notes each step as it ends.
"""

import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from notes import RANK, note
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KEPT_BY = sys.argv[1]
STEPS = int(sys.argv[2])
WIDTH = int(sys.argv[3])
ORDER = Path(os.environ["BENCH_NOTES"] + ".kill")


class Model(pl.LightningModule):
    """Four linear layers of WIDTH by WIDTH."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def training_step(self, batch, batch_idx):
        if RANK == 1 and ORDER.exists():
            ORDER.unlink()
            note("dies", self.global_step)
            os.kill(os.getpid(), signal.SIGKILL)
        return (self.layers(batch[0]) - batch[0]).square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if RANK == 0:
            note("step", self.global_step)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.seed_everything(0)
callbacks = []
path = None
if KEPT_BY == "hooks":
    import ftlaunch_hooks as ft

    callbacks = [ft.lightning.Callback()]
elif KEPT_BY == "file":
    callbacks = [ModelCheckpoint("out", every_n_train_steps=1, save_last=True)]
    path = "out/last.ckpt" if Path("out/last.ckpt").exists() else None
world = int(os.environ.get("WORLD_SIZE", "1"))
trainer = pl.Trainer(
    max_steps=STEPS,
    accelerator="cpu",
    devices=world,
    strategy="ddp" if world > 1 else "auto",
    callbacks=callbacks,
    logger=False,
    enable_checkpointing=KEPT_BY == "file",
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(4096, WIDTH)), batch_size=16, shuffle=True), ckpt_path=path)
