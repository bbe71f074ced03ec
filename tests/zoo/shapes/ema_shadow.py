"""An average of the weights (EMA) as a dictionary of tensors, in an object with state_dict() and load_state_dict().

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Shadow:
    """The averages by name; a new tensor at every update."""

    def __init__(self, model, decay):
        self.decay, self.updates = decay, 0
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, p in model.named_parameters():
            self.shadow[name] = decay * self.shadow[name] + (1 - decay) * p.detach()

    def state_dict(self):
        return {"shadow": self.shadow, "updates": self.updates}

    def load_state_dict(self, state):
        self.shadow, self.updates = dict(state["shadow"]), state["updates"]


torch.manual_seed(16)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
ema = Shadow(model, 0.99)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
job = ft.attach(model=model, ema=ema, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    ema.update(model)
report(model=model, ema=ema, optimizer=optimizer)
