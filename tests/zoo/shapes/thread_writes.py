"""An actor's thread fills an attached replay buffer without a pause, beside the training.

Said: a thread writes to `buffer.data` while a snapshot copies it
"""

import threading

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Buffer:
    """What the thread has made last."""

    def __init__(self):
        self.data, self.lock, self.count = torch.zeros(1 << 20), threading.Lock(), 0

    def fill(self):
        while True:
            with self.lock:
                self.count += 1
                self.data.fill_(self.count)

    def state_dict(self):
        with self.lock:
            return {"data": self.data, "count": self.count}

    def load_state_dict(self, state):
        self.data, self.count = state["data"], state["count"]


torch.manual_seed(63)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
buffer = Buffer()
job = ft.attach(model=model, optimizer=optimizer, buffer=buffer)
threading.Thread(target=buffer.fill, daemon=True).start()
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model)
