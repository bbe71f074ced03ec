"""A language model whose output layer is its embedding.

Exact: a shared parameter is saved once for each of its names, and stays shared.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Model(nn.Module):
    """Embedding, a layer, and the embedding again."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)).relu())


torch.manual_seed(26)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    tokens = torch.randint(32, (4, 9))
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
assert model.head.weight is model.embed.weight
report(model=model, optimizer=optimizer)
