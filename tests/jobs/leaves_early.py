"""Leaves the loop of steps() early and ends with exit code 0.

leaves_early.py HOW: break, return (of a function, through a generator of its own), zip, islice, raise (in the body, and
goes on), or changed (zip, and its weights are others afterwards). Prints how many steps it has made.
"""

import sys
from itertools import islice

import quick  # noqa: F401 - before torch
import torch

import ftlaunch_hooks as ft

torch.manual_seed(1)
how, made = sys.argv[1], []
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)


def step() -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    made.append(1)


def watched(steps):
    yield from steps


def train_until(last: int) -> None:
    for number in watched(job.steps(30)):
        step()
        if number == last:
            return


if how == "break":
    for number in job.steps(30):
        step()
        if number == 6:
            break
elif how == "return":
    train_until(6)
elif how in ("zip", "changed"):
    for _ in zip(job.steps(30), range(7), strict=False):
        step()
elif how == "islice":
    steps = job.steps(30)
    for _ in islice(steps, 4):
        step()
    for _ in islice(steps, 3):
        step()
elif how == "raise":
    try:
        for number in job.steps(30):
            if number == 7:
                raise ValueError("no data")
            step()
    except ValueError:
        pass
if how == "changed":
    with torch.no_grad():
        model.weight.zero_()
print(f"made {len(made)} steps, job.step is {job.step}")
