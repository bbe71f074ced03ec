"""A recurrent network trained on one long text: the hidden state is a variable of the function that trains.

Exact: the variable is saved, and put back into the function as its loop begins
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


def train():
    torch.manual_seed(43)
    model, head = nn.RNN(4, 8), nn.Linear(8, 4)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1e-2)
    hidden = torch.zeros(1, 2, 8)
    job = ft.attach(model=model, head=head, optimizer=optimizer)
    for step in job.steps(20):
        out, hidden = model(torch.randn(5, 2, 4), hidden)
        hidden = hidden.detach()
        loss = head(out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()
    report(model=model, head=head, optimizer=optimizer)


train()
