"""A script with Fabric: `fabric_loop.py OUT STYLE`, with the faults of faults.py.

WHERE: step (before the batch of that number), saving (in Fabric's own save behind so many batches), epoch_end,
evaluation (after that epoch). STYLE: words joined by +: noise, workers, weighted (a sampler with a generator of its
own), stream, bf16, fp16 (with a scaler), accumulate, clip, saves (Fabric's own, every five batches), steps (a loop over
job.steps()), blind (epochs counted from job.step), counts (with enumerate()), short (passes are left early), slow,
longer (five epochs, not three), refused, own, hidden (see own_numbers.py).
What is left in OUT: final_RANK (digest), losses_RANK, fired, csv/.
"""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

import lightning as L
import torch
from faults import in_own_save, strike
from lightning.fabric.loggers import CSVLogger
from lightning.fabric.plugins import MixedPrecision
from own_numbers import own
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import ftlaunch_hooks as ft

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
EPOCHS, GATHERED = 5 if "longer" in STYLE else 3, 3 if "accumulate" in STYLE else 1


def sample(index: int) -> torch.Tensor:
    values = torch.sin(torch.arange(8.0) * (index + 1))
    return values + 0.1 * torch.randn(8) + 0.1 * random.random() if "noise" in STYLE else values


class Data(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return sample(index)


class Stream(IterableDataset):
    def __iter__(self):
        return (sample(index) for index in range(44))


class Count:
    def __init__(self) -> None:
        self.batches = 0

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        self.batches = saved["batches"]


def make_loader() -> DataLoader:
    workers = 1 if "workers" in STYLE else 0
    if "stream" in STYLE:
        return DataLoader(Stream(), batch_size=4, num_workers=workers)
    if "weighted" in STYLE:
        order = WeightedRandomSampler([1.0 + i for i in range(44)], 44, generator=torch.Generator().manual_seed(5))
        return DataLoader(Data(44), batch_size=4, sampler=order, num_workers=workers)
    return DataLoader(**own(Data(44), STYLE), batch_size=4, shuffle=True, num_workers=workers)


def precision() -> dict[str, object]:
    if "fp16" in STYLE:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
        return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    return {"precision": "bf16-mixed"} if "bf16" in STYLE else {}


OUT.mkdir(parents=True, exist_ok=True)
strategy = {"devices": 1 if "refused" in STYLE else WORLD_SIZE}
if WORLD_SIZE > 1 and "refused" not in STYLE:
    strategy["strategy"] = "ddp"
logger = CSVLogger(OUT / "csv", name=None, flush_logs_every_n_steps=4)
fabric = L.Fabric(accelerator="cpu", loggers=logger, **strategy, **precision())
fabric.launch()
fabric.seed_everything(3, verbose=False)
network = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 8))
model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=0.01))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 6, 0.9)
loader, test_loader = fabric.setup_dataloaders(make_loader(), DataLoader(Data(12), batch_size=4, shuffle=True))
count = Count()
job = ft.lightning.attach(
    fabric, model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, test_loader=test_loader, count=count
)


def train(batch: torch.Tensor) -> None:
    strike("step", count.batches)
    gathers = (count.batches + 1) % GATHERED != 0
    with fabric.no_backward_sync(model, enabled=gathers):
        loss = (model(batch) - batch).square().mean()
        fabric.backward(loss)
    if not gathers:
        if "clip" in STYLE:
            fabric.clip_gradients(model, optimizer, max_norm=0.1, error_if_nonfinite=False)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    with (OUT / f"losses_{RANK}").open("a") as file:
        file.write(f"{count.batches} {loss.item().hex()}\n")
    fabric.log("loss", loss, step=count.batches)
    count.batches += 1
    if "saves" in STYLE and count.batches % 5 == 0:
        with in_own_save(count.batches):
            fabric.save(OUT / "own.ckpt", {"model": model, "optimizer": optimizer, "count": count})
    if "slow" in STYLE:
        time.sleep(0.2)


def evaluate(epoch: int) -> None:
    model.eval()
    with torch.no_grad():
        for number, batch in enumerate(test_loader):
            if number == 1:
                strike("evaluation", epoch)
            fabric.log("error", (model(batch) + torch.rand(()) - batch).square().mean(), step=count.batches)
    model.train()


def own_loop() -> None:
    for epoch in range(loader.iteration, EPOCHS):
        for batch in loader:
            train(batch)
            if "short" in STYLE and count.batches % 8 == 0:
                break
            job.step_done()
        strike("epoch_end", epoch)
        evaluate(epoch)
        if "short" in STYLE:
            job.step_done()
    job.finish()


def counting() -> None:
    for epoch in range(loader.iteration, EPOCHS):
        for number, batch in enumerate(loader):
            train(batch * (1 + number))
            job.step_done()
        evaluate(epoch)
    job.finish()


def epochs_from_step() -> None:
    for epoch in range(job.step // 11, EPOCHS):
        for batch in loader:
            train(batch)
            job.step_done()
        evaluate(epoch)
    job.finish()


def over_steps() -> None:
    batches = iter(loader)
    for _ in job.steps(EPOCHS * 11):
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        train(batch)


loops = {"steps": over_steps, "blind": epochs_from_step, "counts": counting}
next((loop for word, loop in loops.items() if word in STYLE), own_loop)()
logger.finalize("success")
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
scale = fabric.strategy.precision.scaler.get_scale() if "fp16" in STYLE else 1.0
(OUT / f"final_{RANK}").write_text(f"{digest.hexdigest()} {count.batches} {scheduler.get_last_lr()} {scale}\n")
