"""A tiny training job for tests: two hooks lines, DDP on gloo, and one fault wherever FAULT says.

FAULT="kind rank step; ...": what happens on that rank in the body of that step, the first entry in attempt 0, the next
in attempt 1, and so on. Every fault leaves a line in `<out>/fired`. Losses go to `<out>/loss_<rank>.csv`, a digest of
the final state to `<out>/final_<rank>`.
"""

import argparse
import contextlib
import ctypes
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft
from ftlaunch_contract.pages.page import NONE, Page, page_path

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--step-time", type=float, default=0.0)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
PLAN = dict(enumerate(os.environ.get("FAULT", "none -1 -1").split(";")))
KIND, *WHERE = PLAN.get(ATTEMPT, "none -1 -1").split()
AT_RANK, AT_STEP = map(int, WHERE)
PF_EXITING = 4
args.out.mkdir(parents=True, exist_ok=True)


def fired() -> None:
    with (args.out / "fired").open("a") as file:
        file.write(f"{KIND} {RANK} {ATTEMPT}\n")


def grandchild() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    (args.out / "grandchild").write_text(str(child.pid))
    fired()
    os.kill(os.getpid(), signal.SIGKILL)


def chatter() -> None:
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        print("x" * 1023, flush=True)
    fired()


def spin() -> None:
    fired()
    while True:
        pass


def hold_the_gil() -> None:
    fired()
    mutex, library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # PyDLL keeps the lock over the call
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def die_in_mid_copy() -> None:
    """Die where a slot has been withdrawn and half of its tensors have their new bytes."""
    page = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), RANK))
    before = page.slot_steps()

    def profile(frame: FrameType, event: str, function: object) -> None:
        if event != "c_call" or getattr(function, "__name__", "") != "_foreach_copy_":
            return
        if not any(old != NONE and new == NONE for old, new in zip(before, page.slot_steps(), strict=True)):
            return
        copies = frame.f_locals["self"]
        half = len(copies.sources) // 2
        for source, target in zip(copies.sources[:half], copies.targets[:half], strict=True):
            target.copy_(source)
        fired()
        os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)


def terminate_children() -> None:
    """What multiprocessing's Pool does at its end: SIGTERM to forked children, which is no SIGTERM to the rank."""
    children = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.terminate()
        child.join()
    fired()


def lag_in_copy(rank: int) -> None:
    """Copy the next snapshot only once another rank, which has it, has begun to die."""

    def profile(frame: FrameType, event: str, function: object) -> None:
        if event == "c_call" and getattr(function, "__name__", "") == "_foreach_copy_":
            sys.setprofile(None)
            wait_for_death(rank)

    sys.setprofile(profile)


def wait_for_death(rank: int) -> None:
    """Return once a rank has begun to die, and this one has been told to leave."""
    pid = Page(page_path(Path(os.environ["FTLAUNCH_MEMORY_DIR"]), rank)).pid
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while not int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]) & PF_EXITING:
            time.sleep(0.001)
    time.sleep(0.05)  # and this rank has been told to leave


def die_last() -> None:
    """Die once every other rank has completed as many steps as this one."""
    memory = Path(os.environ["FTLAUNCH_MEMORY_DIR"])
    pages = [Page(page_path(memory, rank)) for rank in range(WORLD)]
    while min(page.step for page in pages) < AT_STEP:
        time.sleep(0.001)
    fired()
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "ahead": lambda: (fired(), os.kill(os.getpid(), signal.SIGKILL)),
    "sigkill": lambda: (fired(), os.kill(os.getpid(), signal.SIGKILL)),
    "last": die_last,
    "sigsegv": lambda: (fired(), ctypes.string_at(0)),
    "abort": lambda: (fired(), os.abort()),
    "exception": lambda: (fired(), 1 / 0),
    "exit17": lambda: (fired(), time.sleep(0.2), sys.exit(17)),  # see the end of this file
    "os_exit0": lambda: (fired(), os._exit(0)),
    "sigstop": lambda: (fired(), os.kill(os.getpid(), signal.SIGSTOP)),
    "gil": hold_the_gil,
    "spin": spin,
    "deaf": lambda: (fired(), signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(1000)),
    "grandchild": grandchild,
    "chatter": chatter,
    "children": terminate_children,
    "midcopy": die_in_mid_copy,
}


def here(step: int) -> bool:
    return (RANK, step) == (AT_RANK, AT_STEP)


if KIND == "never" and here(-1):
    fired()
    time.sleep(1000)

if WORLD > 1:
    dist.init_process_group("gloo")
torch.manual_seed(7 + RANK)
model: nn.Module = nn.Sequential(nn.Linear(args.width, args.width), nn.Dropout(0.2), nn.Linear(args.width, 1))
if WORLD > 1:
    model = DistributedDataParallel(model)
    if KIND == "gradient-hook":
        next(model.parameters()).register_hook(lambda gradient: None)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
extra = {}
if args.workers:
    data = torch.arange(4096, dtype=torch.float32)
    sampler = ft.ResumableBatchSampler(4096, 4, rank=RANK, world_size=WORLD, seed=3, endless=True)
    extra["sampler"] = sampler
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler, **extra)

if args.workers:
    loader = iter(torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=args.workers))

losses = (args.out / f"loss_{RANK}.csv").open("a", buffering=1)
for step in job.steps(args.steps):
    if KIND in FAULTS and here(step):
        FAULTS[KIND]()
    noise = next(loader).sum() / 1e4 if args.workers else 0.0
    x = torch.randn(4, args.width) + noise
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    losses.write(f"{step} {loss.item().hex()}\n")
    if args.step_time:
        time.sleep(args.step_time)
    if KIND == "ahead" and RANK != AT_RANK and step + 1 == AT_STEP:
        lag_in_copy(AT_RANK)

digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
digest.update(torch.get_rng_state().numpy().tobytes())
(args.out / f"final_{RANK}").write_text(digest.hexdigest())
if WORLD > 1:
    dist.destroy_process_group()
    # torch 2.13 aborts when the interpreter ends within milliseconds of the last collective: a gloo thread that
    # still holds it wants the interpreter's lock.
    time.sleep(0.2)
