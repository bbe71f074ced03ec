"""A loop of the script's own, which ends as it is told: `own_loop.py OUT END [STEPS]`.

END: `finish`, `falls` (off the end of the script), `main` (sys.exit(main())), `os_exit` (in mid-training), `handler` (a
SIGTERM handler that leaves with 0), `early` (an optimizer's step without step_done() comes last). FAULT="RANK STEP":
that rank is killed there in attempt 0.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist

import ftlaunch_hooks as ft

OUT, END, STEPS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["FTLAUNCH_ATTEMPT"])
FAULT = os.environ.get("FAULT", "-1 -1")


def fired(what: str) -> None:
    OUT.mkdir(exist_ok=True)
    with (OUT / "fired").open("a") as file:
        file.write(f"{what} {RANK} {ATTEMPT}\n")


def leave(*_: object) -> None:
    fired("handled")
    sys.exit(0)


def main() -> None:
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    job = ft.attach(model=model, optimizer=optimizer)
    if END == "handler":
        signal.signal(signal.SIGTERM, leave)
    while job.step < STEPS:
        if f"{RANK} {job.step}" == FAULT and ATTEMPT == 0:
            fired("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        if END == "os_exit" and job.step == 4 and ATTEMPT == 0:
            fired("left")
            os._exit(0)
        if END == "handler":
            time.sleep(0.05)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if END == "early" and job.step == STEPS - 1:
            break
        job.step_done(loss=loss.item())
    if END not in ("falls", "main", "handler"):
        job.finish()
        job.finish()
    digest = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
    OUT.mkdir(exist_ok=True)
    (OUT / f"final_{RANK}").write_text(digest)
    dist.destroy_process_group()
    time.sleep(0.2)  # torch 2.13 may abort when the interpreter ends right after the last collective


dist.init_process_group("gloo")
if END == "main":
    sys.exit(main())
main()
