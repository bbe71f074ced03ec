"""The example job, scripts/train_gpt.py, with its state kept by the hooks, or in a file that is written at every step.

    example.py hooks|file STEPS

Rank 1 is killed once, in the middle of step AT. The model, the batches and the optimizer are the example's own.
"""

from notes import RANK, note, noted

note("line")

import os
import signal
import sys
import types
from pathlib import Path

KEPT_BY = sys.argv[1]
STEPS = int(sys.argv[2])
AT = 20
if KEPT_BY == "file":  # the example's import of the hooks must not slow the others down
    sys.modules["ftlaunch_hooks"] = types.ModuleType("ftlaunch_hooks")
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.argv[1:] = []

import torch
import train_gpt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

args = train_gpt.parse_args()
rank, world_size, device = train_gpt.start_process_group()
note("ready")
torch.manual_seed(args.seed + rank)
data, _ = train_gpt.load_text()
model = train_gpt.GPT(args.block_size, args.layers, args.heads, args.width).to(device)
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)


def train(step: int) -> None:
    """Make one step."""
    inputs, targets = train_gpt.random_batch(data, args, device)
    loss = train_gpt.loss_of(replica, inputs, targets)
    if RANK == 1 and step == AT and not noted("dies"):
        note("dies", step)
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if RANK == 0:
        note("step", step + 1)


def with_hooks() -> None:
    """Train with the two lines that the hooks need."""
    import ftlaunch_hooks as ft

    job = ft.attach(model=replica, optimizer=optimizer)
    for step in job.steps(STEPS):
        train(step)


def with_file() -> None:
    """Train with torch.save at every step into a new file that replaces the old one; every rank loads the file."""
    path = Path(os.environ["BENCH_STATE"])
    begin = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        begin = state["step"]
    for step in range(begin, STEPS):
        train(step)
        if RANK == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
            torch.save(state | {"step": step + 1}, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)


with_hooks() if KEPT_BY == "hooks" else with_file()
