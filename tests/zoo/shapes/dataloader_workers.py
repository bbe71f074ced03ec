"""A DataLoader with persistent workers, and ResumableBatchSampler for its position.

Exact: the sampler is attached, and the loader's iterator is made after attach().
"""

import torch
from kit import DEVICE, keep_data_on_cpu, moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

keep_data_on_cpu()
torch.manual_seed(39)
dataset = TensorDataset(torch.randn(50, 8), torch.randn(50, 4))
sampler = ft.ResumableBatchSampler(len(dataset), 8, rank=0, world_size=1, seed=5, endless=True)
loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2, persistent_workers=True, prefetch_factor=3)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer, sampler=sampler)
for step, (inputs, targets) in zip(job.steps(20), loader, strict=False):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs.to(DEVICE)), targets.to(DEVICE))
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer, sampler=sampler)
