"""A job whose slots are prepared while it trains: `large.py OUT STEPS`. FAULT="RANK STEP": killed there in attempt 0.

At each step a child is forked, as a DataLoader's workers are. Rank 0 notes each loss, and the steps at which the
script's thread finds a slot under preparation.
"""

import os
import signal
import sys
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch

import ftlaunch_hooks as ft
from ftlaunch_contract.pages.page import Page, page_path
from ftlaunch_contract.pages.words import PREPARING

OUT, STEPS = Path(sys.argv[1]), int(sys.argv[2])
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["FTLAUNCH_ATTEMPT"])
FAULT = os.environ.get("FAULT", "-1 -1")


def note(name: str, line: str) -> None:
    with (OUT / name).open("a") as file:
        file.write(f"{line}\n")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = torch.nn.EmbeddingBag(8 << 10, 1 << 10, mode="sum")  # 32 MiB, and 64 MiB of the optimizer's
    optimizer = torch.optim.AdamW(model.parameters())
    job = ft.attach(model=model, optimizer=optimizer)
    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), RANK))
    for step in job.steps(STEPS):
        if f"{RANK} {step}" == FAULT and ATTEMPT == 0:
            note("fired", str(step))
            os.kill(os.getpid(), signal.SIGKILL)
        if page.q[PREPARING]:
            note("preparing", f"{ATTEMPT} {RANK} {step}")
        child = os.fork()
        if not child:
            os._exit(torch.ones(3).sum().int().item() - 3)
        if os.waitpid(child, 0)[1]:
            note("failed", f"{ATTEMPT} {RANK} {step}")
        optimizer.zero_grad()
        loss = model(torch.randint(8 << 10, (4, 8))).square().mean()
        loss.backward()
        optimizer.step()
        if RANK == 0:
            note("loss_0.csv", f"{step} {loss.item()!r}")


main()
