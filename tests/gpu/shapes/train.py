"""A training on the device of FT_DEVICE, in the way of FT_WAY; which processes hold memory of the device as an attempt
begins goes to ZOO_OUT/holders.

Exact.
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic
sys.path.insert(0, str(Path(__file__).parents[2] / "zoo" / "shapes"))

import torch
import torch.distributed as dist
from kit import OUT, RANK, WORLD, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

DEVICE, WAY = os.environ.get("FT_DEVICE", "cuda"), os.environ.get("FT_WAY", "plain")
GROUPED = WAY in ("ddp", "fsdp2")


def note_holders() -> None:
    """Note this attempt, this process, and the processes that hold memory of the device."""
    holders = []
    if DEVICE == "cuda":
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        holders = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
    with (OUT / "holders").open("a") as file:
        file.write(
            " ".join(map(str, [os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.getpid(), *holders])) + "\n"
        )


def compiled(step_model: nn.Module) -> nn.Module:
    return torch.compile(step_model, backend="inductor" if DEVICE == "cuda" else "aot_eager")


if GROUPED:  # NCCL wants a GPU a rank; two ranks on one GPU have gloo
    dist.init_process_group("nccl" if DEVICE == "cuda" and WORLD == 1 else "gloo")
torch.ones(1, device=DEVICE)
note_holders()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)).to(DEVICE)
trained = model
if WAY == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh(DEVICE, (WORLD,)))
elif WAY == "ddp":
    trained = DistributedDataParallel(model)
elif WAY == "compile":
    trained = compiled(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(DEVICE, enabled=WAY == "amp")
job = ft.attach(model=model, optimizer=optimizer, scaler=scaler)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    optimizer.zero_grad()
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=WAY == "amp"):
        loss = trained(torch.randn(32, 256, device=DEVICE)).float().square().mean()
    scaler.scale(loss).backward()
    if os.environ.get("FT_HANG") == f"{step}" and job.attempt == 0:
        (OUT / "hangs").touch()
        time.sleep(1000)
    if os.environ.get("FT_STOP") == f"{step}" and job.attempt == 0 and not job.resumed:
        (OUT / "stops").touch()
        while not job.stop_requested:
            time.sleep(0.01)
    moment(step, loss)
    scaler.step(optimizer)
    scaler.update()
report(model=model, optimizer=optimizer, scaler=scaler)
