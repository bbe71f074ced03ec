"""Q-learning with a replay buffer that grows, a target network, and exploration by Python's random numbers.

Exact: the buffer is in an attached object.
"""

import copy
import random
from collections import deque

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class ReplayBuffer:
    """The newest transitions."""

    def __init__(self, size):
        self.transitions = deque(maxlen=size)

    def sample(self, count):
        states, actions, rewards, after = zip(*random.sample(self.transitions, count), strict=True)
        return torch.stack(states), torch.tensor(actions), torch.tensor(rewards), torch.stack(after)

    def state_dict(self):
        return {"transitions": list(self.transitions)}

    def load_state_dict(self, state):
        self.transitions = deque(state["transitions"], maxlen=self.transitions.maxlen)


torch.manual_seed(37)
network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target = copy.deepcopy(network)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
buffer = ReplayBuffer(30)
job = ft.attach(network=network, target=target, optimizer=optimizer, buffer=buffer)
for step in job.steps(20):
    state = torch.randn(4)
    for _ in range(4):
        action = random.randrange(2) if random.random() < 0.3 else network(state).argmax().item()
        after = (state + (0.1 if action else -0.1)).clamp(-2, 2)
        buffer.transitions.append((state, action, after.sum().item(), after))
        state = after
    states, actions, rewards, after = buffer.sample(4)
    with torch.no_grad():
        wanted = rewards + 0.9 * target(after).amax(1)
    loss = nn.functional.smooth_l1_loss(network(states).gather(1, actions[:, None]).squeeze(1), wanted)
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    if step % 5 == 4:
        target.load_state_dict(network.state_dict())
report(network=network, target=target, optimizer=optimizer, buffer=buffer)
