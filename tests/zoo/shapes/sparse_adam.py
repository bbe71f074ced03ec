"""Sparse gradients of an embedding, with SparseAdam for it and Adam for the rest; they are cleared at the top.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(63)
embedding, head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 4)
model = nn.ModuleDict({"embedding": embedding, "head": head})
sparse = torch.optim.SparseAdam(embedding.parameters(), lr=1e-2)
dense = torch.optim.Adam(head.parameters(), lr=1e-2)
job = ft.attach(model=model, sparse=sparse, dense=dense)
for step in job.steps(20):
    if step % 2 == 0:
        sparse.zero_grad()
        dense.zero_grad()
    loss = head(embedding(torch.randint(50, (16,)))).square().mean()
    loss.backward()
    moment(step, loss)
    if step % 2:
        sparse.step()
        dense.step()
report(model=model, sparse=sparse, dense=dense)
