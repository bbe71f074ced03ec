"""Epochs of other lengths: each makes its loader anew, from samples that it draws from two generators.

Exact: the body begins again with the random numbers with which it had begun.
"""

import numpy as np
import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import ftlaunch_hooks as ft

torch.manual_seed(62)
rng = np.random.default_rng(62)
data = TensorDataset(torch.randn(60, 8), torch.randn(60, 4))
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for epoch in job.epochs(4):
    chosen = rng.permutation(60)[torch.randperm(60)[: 24 + 12 * epoch].cpu()].tolist()
    loader = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(chosen))
    for inputs, targets in job.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)
