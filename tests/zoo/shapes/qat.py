"""Quantization-aware training: observers of the range of weights (a channel each) and activations, one buffer each.

Exact.
"""

import warnings

import torch
from kit import moment, report
from torch import nn
from torch.ao.quantization import (
    QConfig,
    default_fused_act_fake_quant,
    default_fused_per_channel_wt_fake_quant,
    disable_observer,
    prepare_qat,
)

import ftlaunch_hooks as ft

warnings.simplefilter("ignore")
torch.manual_seed(64)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model.qconfig = QConfig(activation=default_fused_act_fake_quant, weight=default_fused_per_channel_wt_fake_quant)
prepare_qat(model, inplace=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    if step == 10:
        model.apply(disable_observer)
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)
