"""One head for each of torch's optimizers, those that are fused, factored or without a first moment among them.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

OPTIMIZERS = {
    "adadelta": (torch.optim.Adadelta, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "adagrad": (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
    "adamax": (torch.optim.Adamax, {}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "asgd": (torch.optim.ASGD, {}),
    "fused": (torch.optim.AdamW, {"fused": True}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "rprop": (torch.optim.Rprop, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "maximize": True}),
}
torch.manual_seed(83)
model = nn.ModuleDict({name: nn.Linear(8, 2) for name in OPTIMIZERS})
optimizers = {name: kind(model[name].parameters(), lr=1e-2, **more) for name, (kind, more) in OPTIMIZERS.items()}
job = ft.attach(model=model, **optimizers)
for step in job.steps(20):
    inputs = torch.randn(16, 8)
    loss = torch.stack([head(inputs).square().mean() for head in model.values()]).sum()
    model.zero_grad()
    loss.backward()
    moment(step, loss)
    for optimizer in optimizers.values():
        optimizer.step()
report(model=model, **optimizers)
