"""Several models in one job: an actor and a critic that are trained, and a frozen reference that is never saved.

Exact.
"""

import copy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(36)
actor, critic = (
    nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)),
    nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 1)),
)
reference = copy.deepcopy(actor).eval().requires_grad_(False)
optimizers = {
    "actor_optimizer": torch.optim.AdamW(actor.parameters(), lr=1e-2),
    "critic_optimizer": torch.optim.AdamW(critic.parameters(), lr=1e-2),
}
job = ft.attach(actor=actor, critic=critic, reference=reference, **optimizers, frozen=["reference"])
tokens = torch.zeros(8, 1, dtype=torch.long)
for step in job.steps(20):
    with torch.no_grad():
        actions = torch.multinomial(actor(tokens[:, -1]).softmax(-1), 1)
        reward = (actions == 3).float().squeeze(1)
    log_probs = actor(tokens[:, -1]).log_softmax(-1).gather(1, actions).squeeze(1)
    with torch.no_grad():
        prior = reference(tokens[:, -1]).log_softmax(-1).gather(1, actions).squeeze(1)
    value = critic(tokens[:, -1]).squeeze(1)
    advantage = reward - 0.1 * (log_probs - prior).detach() - value
    loss = -(advantage.detach() * log_probs).mean() + advantage.square().mean()
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    for optimizer in optimizers.values():
        optimizer.step()
report(actor=actor, critic=critic, reference=reference, **optimizers)
