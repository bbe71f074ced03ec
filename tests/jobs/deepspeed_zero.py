"""A small network trained by DeepSpeed: `deepspeed_zero.py OUT STYLE`.

STYLE: words joined by +: zero0, zero1, zero2, zero3, bf16, frozen (the first layer), accumulate, groups (two parameter
groups), slow, plain (not kept), micro (a step of the loop for each micro batch), offload (the optimizer, to the
processor), parameters (likewise).
FAULT="RANK STEP; ...": killed before the optimizer's step, one an attempt. Left in OUT: final_RANK, losses_RANK, fired.
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
FAULTS = [one.split() for one in os.environ.get("FAULT", "").split(";") if one.strip()]
STEPS, MICRO, GATHER = 16, 2, 3 if "accumulate" in STYLE else 1
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


def strike(step: int) -> None:
    if len(FAULTS) <= ATTEMPT or [str(RANK), str(step)] != FAULTS[ATTEMPT]:
        return
    with (OUT / "fired").open("a") as file:
        file.write(f"{RANK} {step} {ATTEMPT}\n")
    os.kill(os.getpid(), signal.SIGKILL)


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


def train(engine: Any, step: int, micro: Iterable[int]) -> None:
    for number in micro:
        rows = torch.Generator().manual_seed(1000 * step + 10 * number + RANK)
        batch = torch.randn(MICRO, 6, generator=rows).to(DEVICE, torch.bfloat16 if HALF else torch.float32)
        loss = (engine(batch) - batch).square().mean()
        engine.backward(loss)
        if number == GATHER - 1:
            strike(step)
        engine.step()
        with (OUT / f"losses_{RANK}").open("a") as file:
            file.write(f"{step}.{number} {loss.item().hex()}\n")
    time.sleep(0.2 if "slow" in STYLE else 0)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles C++ here, for a minute
    deepspeed.init_distributed("nccl" if DEVICE != "cpu" else "gloo")
    engine = build()
    loop: Iterable[int] = range(STEPS)
    if "plain" not in STYLE:
        import ftlaunch_hooks as ft

        job = ft.deepspeed.attach(engine)
        loop = job.steps(STEPS)
    for step in loop:
        train(engine, step, [step % GATHER] if "micro" in STYLE else range(GATHER))
    with deepspeed.zero.GatheredParameters([*engine.module.parameters()], enabled=STAGE == 3):
        held = [value.float().cpu().numpy().tobytes() for value in engine.module.state_dict().values()]
    digest = hashlib.sha256(b"".join(held)).hexdigest()
    counts = engine.global_steps, engine.global_samples, engine.micro_steps, engine.skipped_steps, engine.get_lr()
    (OUT / f"final_{RANK}").write_text(f"{digest} {counts} {torch.rand(1).item().hex()}\n")
    torch.distributed.barrier()
    time.sleep(0.2)
    torch.distributed.destroy_process_group()


main()
