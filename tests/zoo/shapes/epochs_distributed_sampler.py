"""Two ranks, each with its part of the data by a DistributedSampler, whose epoch the script sets.

Exact: the loops are job.epochs() and job.batches().
"""

import torch
from kit import RANK, WORLD, join, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ftlaunch_hooks as ft

RANKS = 2

join()
torch.manual_seed(51)
data = TensorDataset(torch.randn(60, 8), torch.randn(60, 4))
sampler = DistributedSampler(data, WORLD, RANK)
loader = DataLoader(data, batch_size=6, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for epoch in job.epochs(4):
    sampler.set_epoch(epoch)
    for inputs, targets in job.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)
