"""A small network trained by DeepSpeed: `deepspeed_zero.py OUT STYLE`.

STYLE: words joined by +: zero0, zero1, zero2, zero3, bf16, frozen (the first layer), accumulate, groups (two parameter
groups), slow, longer (32 steps, not 16), plain (not kept), micro (a step of the loop for each micro batch), offload
(the optimizer, to the processor), parameters (likewise), evaluate (every four steps), saves (DeepSpeed's own, every
five steps), workers (of a loader that is attached with its sampler).
Faults are those of faults.py; WHERE: step (before the optimizer's step), evaluation, saving. Left in OUT: final_RANK,
losses_RANK, fired.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

import deepspeed
import torch
from faults import in_own_save, strike
from torch import nn
from torch.utils.data import DataLoader, Dataset

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, MICRO, GATHER = 32 if "longer" in STYLE else 16, 2, 3 if "accumulate" in STYLE else 1
HALF = "bf16" in STYLE
(STAGE,) = (int(word[4:]) for word in STYLE if word.startswith("zero"))
DEVICE = f"cuda:{RANK}" if torch.cuda.is_available() else "cpu"
CONFIG = {
    "train_micro_batch_size_per_gpu": MICRO,
    "gradient_accumulation_steps": GATHER,
    "gradient_clipping": 0.5,
    "zero_optimization": {
        "stage": STAGE,
        "offload_optimizer": {"device": "cpu" if "offload" in STYLE else "none"},
        **({"offload_param": {"device": "cpu"}} if "parameters" in STYLE else {}),
        "stage3_param_persistence_threshold": 20,
    },
    "zero_force_ds_cpu_optimizer": False,
    "bf16": {"enabled": HALF},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 4, "total_num_steps": 40}},
    "steps_per_print": 1000,
}


def build() -> Any:
    torch.manual_seed(3)
    norm: nn.Module = nn.LayerNorm(32) if HALF else nn.BatchNorm1d(32)
    net = nn.Sequential(nn.Linear(6, 32), norm, nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 6))
    net[0].requires_grad_("frozen" not in STYLE)
    weights = [one for one in net.parameters() if one.dim() > 1]
    others = [one for one in net.parameters() if one.dim() == 1]
    apart = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    groups: Any = apart if "groups" in STYLE else [*net.parameters()]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    return deepspeed.initialize(model=net, optimizer=optimizer, config=CONFIG)[0]


DTYPE = torch.bfloat16 if HALF else torch.float32


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.sin(torch.arange(6.0) * (index + 1)) + 0.1 * torch.randn(6)


def loader() -> tuple[Iterable[Any], Any]:
    import ftlaunch_hooks as ft

    sampler = ft.ResumableBatchSampler(len(Rows()), MICRO * GATHER, rank=RANK, world_size=WORLD, seed=5, endless=True)
    return DataLoader(Rows(), batch_sampler=sampler, num_workers=1), sampler


def rows_of(step: int, number: int, batch: Any) -> torch.Tensor:
    """The rows of a micro batch: of the step's batch, or drawn."""
    if batch is not None:
        return batch[number * MICRO : (number + 1) * MICRO].to(DEVICE, DTYPE)
    rows = torch.Generator().manual_seed(1000 * step + 10 * number + RANK)
    return torch.randn(MICRO, 6, generator=rows).to(DEVICE, DTYPE)


def train(engine: Any, step: int, micro: Iterable[int], batch: Any) -> None:
    for number in micro:
        given = rows_of(step, number, batch)
        loss = (engine(given) - given).square().mean()
        engine.backward(loss)
        if number == GATHER - 1:
            strike("step", step)
        engine.step()
        with (OUT / f"losses_{RANK}").open("a") as file:
            file.write(f"{step}.{number} {loss.item().hex()}\n")
    if "saves" in STYLE and step % 5 == 4:
        with in_own_save(step):
            engine.save_checkpoint(str(OUT / "own"))
    if "evaluate" in STYLE and step % 4 == 3:
        evaluate(engine, step)
    time.sleep(0.2 if "slow" in STYLE else 0)


def evaluate(engine: Any, step: int) -> None:
    engine.eval()
    with torch.no_grad():
        error = engine(torch.rand(4, 6, device=DEVICE).to(DTYPE)).square().mean()
    strike("evaluation", step)
    with (OUT / f"losses_{RANK}").open("a") as file:
        file.write(f"{step}.evaluation {error.item().hex()}\n")
    engine.train()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles C++ here, for a minute
    deepspeed.init_distributed("nccl" if DEVICE != "cpu" else "gloo")
    engine = build()
    batches, sampler = loader() if "workers" in STYLE else (repeat(None), None)
    loop: Iterable[int] = range(STEPS)
    if "plain" not in STYLE:
        import ftlaunch_hooks as ft

        more = {"sampler": sampler} if sampler is not None else {}
        job = ft.deepspeed.attach(engine, **more)
        loop = job.steps(STEPS)
    for step, batch in zip(loop, batches, strict=False):
        train(engine, step, [step % GATHER] if "micro" in STYLE else range(GATHER), batch)
    with deepspeed.zero.GatheredParameters([*engine.module.parameters()], enabled=STAGE == 3):
        held = [value.float().cpu().numpy().tobytes() for value in engine.module.state_dict().values()]
    digest = hashlib.sha256(b"".join(held)).hexdigest()
    counts = engine.global_steps, engine.global_samples, engine.micro_steps, engine.skipped_steps, engine.get_lr()
    (OUT / f"final_{RANK}").write_text(f"{digest} {counts} {torch.rand(1).item().hex()}\n")
    torch.distributed.barrier()
    time.sleep(0.2)
    torch.distributed.destroy_process_group()


main()
