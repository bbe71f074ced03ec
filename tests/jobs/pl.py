"""A Lightning script: `pl.py OUT STYLE`, with the faults of faults.py.

WHERE: step (in training_step, of that batch over all epochs), validation (of that number), epoch_end, saving (within
ModelCheckpoint), train_end, lost (as step, and its snapshots are lost first).
STYLE: words joined by +: zero (without the callback in the script), module, workers, noise, stream, unseeded, slow
(data); accumulate, interval, fraction, manual, plateau, metric, bf16, fp16 (with a scaler), clip (training); ema, swa,
plain (no batch norm), early, finder (callbacks); twice (two fits: the batches of the second are numbered from 1000),
given (a ckpt_path=), longer (five epochs, as given has), outputs, raises, reset, lonely, iterator, own, hidden (see
own_numbers.py).
What is left in OUT: final_RANK (digests), losses_RANK, samples_RANK, fired, csv/.
"""

import contextlib
import hashlib
import os
import random
import sys
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from faults import strike
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from own_numbers import own
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def lose_memory() -> None:
    """Once there is a checkpoint, and nobody reads a snapshot."""
    from ftlaunch_contract.pages.page import NONE, Page, page_path

    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), RANK))
    checkpoints, deadline = Path(os.environ["FTLAUNCH_CHECKPOINT_DIR"]), time.monotonic() + 60
    while page.saved < page.save_step or not any(checkpoints.glob("iteration_???????")):
        assert time.monotonic() < deadline, "there is no checkpoint"
        time.sleep(0.01)
    for slot in range(len(page.slot_steps())):
        page.set_slot(slot, NONE)


class Data(Dataset):
    def __init__(self, size: int, noise: bool) -> None:
        self.size, self.noise = size, noise

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        values = torch.sin(torch.arange(8.0) * (index + 1))
        return values + 0.1 * torch.randn(8) + 0.1 * random.random() if self.noise else values


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.sin(torch.arange(8.0) * (index + 1)) for index in range(48)])


class Model(pl.LightningModule):
    first = 0

    def __init__(self) -> None:
        super().__init__()
        norm = nn.Identity() if "plain" in STYLE else nn.BatchNorm1d(16)
        self.layers = nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 8))
        if "manual" in STYLE:
            self.other = nn.Linear(8, 8)
        self.outputs: list[torch.Tensor] = []
        self.automatic_optimization = "manual" not in STYLE
        if "metric" in STYLE:
            import torchmetrics

            self.error = torchmetrics.MeanMetric()

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        made = self.first + self.trainer.fit_loop.epoch_loop.total_batch_idx
        strike("step", made)
        strike("lost", made, first=lose_memory)
        if "slow" in STYLE:
            time.sleep(0.1)
        loss = (self.layers(batch) - batch).square().mean()
        if "manual" in STYLE:
            first, second = self.optimizers()
            self.manual_backward(loss)
            first.step()
            first.zero_grad()
            loss = (self.other(batch) - batch).square().mean()
            self.manual_backward(loss)
            second.step()
            second.zero_grad()
        with (OUT / f"losses_{RANK}").open("a") as file:
            file.write(f"{made} {loss.item().hex()}\n")
        with (OUT / f"samples_{RANK}").open("a") as file:
            file.writelines(f"{made} {sample[1].item():.6f}\n" for sample in batch)
        if "outputs" in STYLE:
            self.outputs.append(loss.detach())
        if "raises" in STYLE and made == 5:
            Model.first = 1000
            raise RuntimeError("out of memory")
        self.log("loss", loss, on_step=True, on_epoch=True)
        if "metric" in STYLE:
            self.error(loss.detach())
            self.log("error", self.error, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        if index == 1 and not self.trainer.sanity_checking:
            strike("validation", self.global_step)
        noise = torch.rand(()) * 1e-3
        self.log("val_loss", (self.layers(batch) - batch).square().mean() + noise, sync_dist=True)

    def on_train_epoch_end(self) -> None:
        strike("epoch_end", self.current_epoch)

    def on_train_start(self) -> None:
        if "reset" in STYLE:
            nn.init.zeros_(self.layers[0].bias)

    def on_train_end(self) -> None:
        strike("train_end", 0)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name == "save_checkpoint":
                strike("saving", self.global_step)
            frame = frame.f_back

    def configure_optimizers(self):
        if "manual" in STYLE:
            return [torch.optim.Adam(self.layers.parameters(), 0.01), torch.optim.SGD(self.other.parameters(), 0.01)]
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        if "plateau" in STYLE:
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9), "interval": "step"}]


class Fetches(Model):
    def training_step(self, dataloader_iter) -> torch.Tensor:
        return super().training_step(next(dataloader_iter)[0], 0)


def loader(noise: bool, shuffle: bool) -> DataLoader:
    if "stream" in STYLE and shuffle:
        return DataLoader(Stream(), batch_size=4)
    workers = 1 if "workers" in STYLE else 0
    data = own(Data(48, noise), STYLE) if shuffle else {"dataset": Data(16, noise)}
    return DataLoader(**data, batch_size=4, shuffle=shuffle, num_workers=workers)


class Module(pl.LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.had = 0

    def on_before_batch_transfer(self, batch: torch.Tensor, dataloader_idx: int) -> torch.Tensor:
        self.had += self.trainer.training
        return batch + 1e-3 * self.had

    def state_dict(self) -> dict[str, int]:
        return {"had": self.had}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        self.had = saved["had"]

    def setup(self, stage: str) -> None:
        self.noise = torch.rand(()).item() < 2

    def train_dataloader(self) -> DataLoader:
        return loader(self.noise, True)

    def val_dataloader(self) -> DataLoader:
        return loader(False, False)


def callbacks() -> list:
    found: list = [ModelCheckpoint(monitor="val_loss", save_top_k=1, save_last=True)]
    if "ema" in STYLE:
        from lightning.pytorch.callbacks import EMAWeightAveraging  # Lightning 2.5 has none

        found.append(EMAWeightAveraging(decay=0.9))
    if "swa" in STYLE:
        found.append(StochasticWeightAveraging(0.01))
    if "finder" in STYLE:
        found.append(LearningRateFinder())
    if "early" in STYLE:
        found.append(EarlyStopping("val_loss", patience=1, min_delta=10.0))
    if "zero" not in STYLE:
        import ftlaunch_hooks as ft

        found.append(ft.lightning.Callback())
    return found


def precision() -> dict:
    if "fp16" in STYLE:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
        return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    return {"precision": "bf16-mixed"} if "bf16" in STYLE else {}


def make_trainer() -> pl.Trainer:
    ranks = 1 if "lonely" in STYLE else WORLD_SIZE
    interval = 4 if "interval" in STYLE else 0.4 if "fraction" in STYLE else None
    return pl.Trainer(
        max_epochs=3 if STYLE.isdisjoint({"given", "longer"}) else 5, accelerator="cpu",
        devices=ranks, strategy="ddp" if ranks > 1 else "auto",
        accumulate_grad_batches=3 if "accumulate" in STYLE else 1,
        val_check_interval=interval, gradient_clip_val=0.1 if "clip" in STYLE else None, **precision(),
        log_every_n_steps=2, callbacks=callbacks(), logger=CSVLogger(OUT / "csv", name=None),
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


def digest(model: nn.Module) -> str:
    made = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        made.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return made.hexdigest()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    if "unseeded" not in STYLE:
        pl.seed_everything(7)
    model, trainer = Fetches() if "iterator" in STYLE else Model(), make_trainer()
    ckpt_path = None
    if "given" in STYLE:
        ckpt_path = str(OUT / "given.ckpt")
    if "module" in STYLE:
        trainer.fit(model, datamodule=Module(), ckpt_path=ckpt_path)
    else:
        noise = "noise" in STYLE
        with contextlib.suppress(RuntimeError) if "raises" in STYLE else contextlib.nullcontext():
            trainer.fit(model, loader(noise, True), loader(False, False), ckpt_path=ckpt_path)
    if "raises" in STYLE:
        trainer = make_trainer()
        trainer.fit(model, loader(False, True), loader(False, False))
    lines = [digest(model), str(trainer.global_step)]
    if "twice" in STYLE:
        model = Model()
        Model.first = 1000
        trainer = make_trainer()
        trainer.fit(model, loader(False, True), loader(False, False))
        lines += [digest(model), str(trainer.global_step)]
    if "fp16" in STYLE:
        lines.append(str(trainer.precision_plugin.scaler.get_scale()))
    lines += [f"{name} {value.item().hex()}" for name, value in sorted(trainer.callback_metrics.items())]
    (OUT / f"final_{RANK}").write_text("\n".join(lines) + "\n")


main()
