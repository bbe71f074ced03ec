"""Post-local SGD as torch has it: a communication hook for the first steps, then averages by a PeriodicModelAverager.

Exact: where there is an averager each rank saves its own; the counters of averager and hook are in attached objects.
"""

import torch
from kit import RANK, join, moment, report
from torch import nn
from torch.distributed import new_subgroups
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft


class HookState(PostLocalSGDState):
    """With the number of steps that the hook has seen."""

    def state_dict(self):
        return {"iter": self.iter}

    def load_state_dict(self, saved):
        self.iter = saved["iter"]


class Averager(PeriodicModelAverager):
    """With the number of steps that it has seen."""

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, saved):
        self.step = saved["step"]


RANKS = 2
join()
torch.manual_seed(61)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
alone, _ = new_subgroups(group_size=1)
state = HookState(process_group=None, subgroup=alone, start_localSGD_iter=4, post_local_gradient_allreduce=False)
model.register_comm_hook(state, post_localSGD_hook)
averager = Averager(period=4, warmup_steps=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer, hook=state, averager=averager)
torch.manual_seed(161 + RANK)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    averager.average_parameters(list(model.parameters()))  # of those that have a gradient
    optimizer.zero_grad()
report(model=model, optimizer=optimizer)
