"""An ensemble by torch.func: the parameters of all members are stacked in plain tensors, and vmap runs them at once.

Exact: what an attached optimizer steps is saved, also where no attached module has it.
"""

import torch
from kit import moment, report
from torch import nn
from torch.func import functional_call, stack_module_state

import ftlaunch_hooks as ft

torch.manual_seed(82)
members = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(3)]
parameters, buffers = stack_module_state(members)
optimizer = torch.optim.Adam(parameters.values(), lr=1e-2)


def predict(parameters, buffers, inputs):
    return functional_call(members[0], (parameters, buffers), (inputs,))


job = ft.attach(optimizer=optimizer)
for step in job.steps(20):
    inputs = torch.randn(16, 8)
    outputs = torch.vmap(predict, in_dims=(0, 0, None))(parameters, buffers, inputs)
    loss = (outputs - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(parameters=parameters, optimizer=optimizer)
