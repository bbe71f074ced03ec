"""Looks where it resumes before it attaches: `peeks.py OUT STEPS [replicated]`.

With `replicated` its model is kept equal on all ranks by hand, and its optimizer is a class of the script's own.
FAULT="RANK STEP": that rank is killed there in attempt 0.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist

import ftlaunch_hooks as ft

OUT, STEPS, REPLICATED = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["replicated"]
RANK, ATTEMPT = int(os.environ.get("RANK", "0")), int(os.environ.get("FTLAUNCH_ATTEMPT", "0"))
FAULT = os.environ.get("FAULT", "-1 -1")
OUT.mkdir(parents=True, exist_ok=True)


class Own(torch.optim.Adam):
    """Steps all of its parameters."""


class Position:
    """Where the script is, with a tensor of its own."""

    def __init__(self) -> None:
        self.place, self.seen = 0, torch.zeros(3)

    def state_dict(self) -> dict[str, object]:
        return {"place": self.place, "seen": self.seen}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.place, self.seen = int(str(state["place"])), state["seen"]  # type: ignore[assignment]


def main() -> None:
    torch.manual_seed(5)
    model, position = torch.nn.Linear(4, 2), Position()
    optimizer = Own(model.parameters(), lr=0.1)
    point = ft.peek("position")
    assert ft.peek("position") is None if point is None else True
    assert ft.resuming() is (point is not None)
    if point is not None and "RANK" in os.environ:  # a job of two ranks
        other = ft.peek("position", rank=1 - RANK)
        assert other is not None
        assert other[1]["seen"][2] == point[0] * (1 - RANK)
    with (OUT / f"peeked_{RANK}").open("a") as file:
        seen = "-" if point is None else f"{point[1]['place']} {point[1]['seen'].tolist()}"
        file.write(f"{ATTEMPT} {None if point is None else point[0]} {seen}\n")
    options = {"replicated": ["model", "optimizer"]} if REPLICATED else {}
    job = ft.attach(model=model, optimizer=optimizer, position=position, **options)
    assert job.resumed is (point is not None)
    assert job.step == (0 if point is None else point[0])
    assert position.place == job.step
    for step in job.steps(STEPS):
        if f"{RANK} {step}" == FAULT and ATTEMPT == 0:
            (OUT / "fired").write_text("killed\n")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(3, 4) * (step + 1 + RANK)).square().mean().backward()
        if dist.is_initialized():
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        position.place += 1
        position.seen += torch.tensor([1.0, step, RANK])
    (OUT / f"final_{RANK}").write_text(hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())


if "RANK" in os.environ:
    dist.init_process_group("gloo")
main()
if dist.is_initialized():
    dist.destroy_process_group()
