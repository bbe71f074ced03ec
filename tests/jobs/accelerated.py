"""A script with Accelerate: `accelerated.py OUT STYLE`, with the faults of faults.py.

WHERE: step (before the batch of that number), saving (in Accelerate's own save behind so many batches), epoch_end,
evaluation (after that epoch). STYLE: words joined by +: accumulate, noise, workers, bf16, steps (a loop over
job.steps()), slow, longer (five epochs, not three), saves (Accelerate's own, every five batches), own, hidden (see
own_numbers.py).
What is left in OUT: final_RANK (digest), losses_RANK, fired.
"""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator, DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin, PartialState
from faults import in_own_save, strike
from own_numbers import own
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset

import ftlaunch_hooks as ft

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
RANK = int(os.environ["RANK"])
EPOCHS, EVERY = 5 if "longer" in STYLE else 3, 3 if "accumulate" in STYLE else 1


class Data(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        values = torch.sin(torch.arange(8.0) * (index + 1))
        return values + 0.1 * torch.randn(8) + 0.1 * random.random() if "noise" in STYLE else values


class Count:
    def __init__(self) -> None:
        self.batches = 0

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        self.batches = saved["batches"]


def where() -> dict[str, object]:
    """Accelerate takes FSDP and DeepSpeed on accelerators only: it is told that the ranks are on some."""
    zero = [word for word in STYLE if word.startswith("zero")]
    if not zero and "fsdp" not in STYLE:
        return {"cpu": True}
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    if not zero:
        return {"cpu": True, "fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)}
    plugin = DeepSpeedPlugin(zero_stage=int(zero[0][-1]), gradient_accumulation_steps=EVERY)
    return {"deepspeed_plugin": plugin}


OUT.mkdir(parents=True, exist_ok=True)
if "unseeded" not in STYLE:
    torch.manual_seed(3)
    random.seed(3)
accelerator = Accelerator(
    gradient_accumulation_steps=EVERY, mixed_precision="bf16" if "bf16" in STYLE else "no", **where()
)
network = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 8))
adam = torch.optim.AdamW(network.parameters(), lr=0.01)
halves = torch.optim.lr_scheduler.StepLR(adam, 6, 0.9)
workers = 1 if "workers" in STYLE else 0
training = DataLoader(**own(Data(44), STYLE), batch_size=4, shuffle=True, num_workers=workers)
model, optimizer, scheduler, loader, test_loader = accelerator.prepare(
    network, adam, halves, training, DataLoader(Data(12), batch_size=4)
)
count = Count()
accelerator.register_for_checkpointing(count)
job = ft.accelerate.attach(accelerator)


def train(batch: torch.Tensor) -> float:
    strike("step", count.batches)
    with accelerator.accumulate(model):
        loss = (model(batch) - batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    with (OUT / f"losses_{RANK}").open("a") as file:
        file.write(f"{count.batches} {loss.item().hex()}\n")
    count.batches += 1
    if "saves" in STYLE and count.batches % 5 == 0:
        with in_own_save(count.batches):
            accelerator.save_state(str(OUT / "own"))
    if "slow" in STYLE:
        time.sleep(0.2)
    return loss.item()


def evaluate(epoch: int) -> None:
    model.eval()
    with torch.no_grad():
        for number, batch in enumerate(test_loader):
            if number == 1:
                strike("evaluation", epoch)
            accelerator.gather_for_metrics(model(batch) + torch.rand(()))
    model.train()


def own_loop() -> None:
    for epoch in range(loader.iteration, EPOCHS):
        for batch in loader:
            train(batch)
            if accelerator.sync_gradients:
                job.step_done()
        strike("epoch_end", epoch)
        evaluate(epoch)
    job.finish()


def over_steps() -> None:
    batches = iter(loader)
    for _ in job.steps(EPOCHS * len(loader)):
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        train(batch)


over_steps() if "steps" in STYLE else own_loop()
digest = hashlib.sha256()
for tensor in accelerator.unwrap_model(model).state_dict().values():
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    digest.update(whole.numpy().tobytes())
(OUT / f"final_{RANK}").write_text(f"{digest.hexdigest()} {count.batches} {scheduler.get_last_lr()}\n")
accelerator.end_training()
