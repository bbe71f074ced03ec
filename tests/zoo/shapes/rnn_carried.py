"""A recurrent network trained on one long text: the hidden state goes from one batch to the next.

Exact: the hidden state is in an attached object.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Carried:
    """What goes from batch to batch."""

    def __init__(self):
        self.hidden = None

    def state_dict(self):
        return {"hidden": self.hidden}

    def load_state_dict(self, state):
        self.hidden = state["hidden"]


torch.manual_seed(32)
rnn, head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 8)
model = nn.ModuleDict({"rnn": rnn, "head": head})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
carried = Carried()
job = ft.attach(model=model, optimizer=optimizer, carried=carried)
for step in job.steps(20):
    batch = torch.randn(4, 5, 8)
    out, hidden = rnn(batch, carried.hidden)
    carried.hidden = tuple(h.detach() for h in hidden)
    loss = (head(out) - batch.roll(-1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
report(model=model, optimizer=optimizer, carried=carried)
