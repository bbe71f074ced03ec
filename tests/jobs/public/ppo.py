"""Proximal policy optimisation in one file: environments, rollouts, and several passes over each of them."""

import numpy as np
import torch
from kit import note, reach, report
from torch import nn
from torch.distributions.categorical import Categorical

import ftlaunch_hooks as ft  # ftlaunch

ENVS, STEPS, UPDATES, MINIBATCHES, PASSES = 3, 8, 24, 2, 2


class Poles:
    """Environments: a pole each, pushed to one of two sides."""

    def __init__(self, count, seed):
        self.rng = np.random.default_rng(seed)
        self.states = np.zeros((count, 3))
        self.ages = np.zeros(count, dtype=np.int64)

    def reset(self):
        """Begin all of them."""
        self.states = self.rng.uniform(-0.05, 0.05, self.states.shape)
        self.ages[:] = 0
        return self.states.astype(np.float32)

    def step(self, actions):
        """Push; those that fall or are old begin again."""
        force = np.where(actions == 1, 0.2, -0.2)
        self.states[:, 0] += 0.1 * self.states[:, 1]
        self.states[:, 1] += 0.3 * self.states[:, 0] + force * 0.3
        self.states[:, 2] += 0.05 * self.rng.standard_normal(len(self.states))
        self.ages += 1
        done = (np.abs(self.states[:, 0]) > 0.3) | (self.ages >= 10)
        self.states[done] = self.rng.uniform(-0.05, 0.05, (int(done.sum()), 3))
        self.ages[done] = 0
        return self.states.astype(np.float32), np.where(done, 0.0, 1.0), done

    def state_dict(self):
        """What a simulator says of itself."""
        return {"states": self.states, "ages": self.ages}

    def load_state_dict(self, state):
        """Restore what `state_dict` returned."""
        self.states, self.ages = state["states"], state["ages"]


class Agent(nn.Module):
    """An actor and a critic."""

    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))

    def get_action_and_value(self, x, action=None):
        """An action, where none is given; its probability, the entropy, and the value."""
        chances = Categorical(logits=self.actor(x))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action), chances.entropy(), self.critic(x)


np.random.seed(1)
torch.manual_seed(1)
envs = Poles(ENVS, seed=1)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
obs = torch.zeros((STEPS, ENVS, 3))
actions, logprobs, rewards, dones, values = (torch.zeros((STEPS, ENVS)) for _ in range(5))
global_step = 0
next_obs, next_done = torch.tensor(envs.reset()), torch.zeros(ENVS)
job = ft.attach(agent=agent, optimizer=optimizer, envs=envs)  # ftlaunch
for update in job.steps(UPDATES):  # ftlaunch
    optimizer.param_groups[0]["lr"] = (1 - update / UPDATES) * 2.5e-3
    for step in range(STEPS):
        global_step += ENVS
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        found, reward, done = envs.step(action.numpy())
        rewards[step] = torch.tensor(reward)
        next_obs, next_done = torch.tensor(found), torch.tensor(done).float()
        reach("batch", update, step)
    with torch.no_grad():
        next_value, last = agent.critic(next_obs).flatten(), 0
        advantages = torch.zeros_like(rewards)
        for t in reversed(range(STEPS)):
            is_last = t == STEPS - 1
            alive = 1 - (next_done if is_last else dones[t + 1])
            after = next_value if is_last else values[t + 1]
            last = rewards[t] + 0.99 * after * alive - values[t] + 0.99 * 0.95 * alive * last
            advantages[t] = last
        returns = advantages + values
    reach("validation", update)
    flat = [one.reshape(-1, *one.shape[2:]) for one in (obs, actions, logprobs, advantages, returns)]
    places = np.arange(STEPS * ENVS)
    for _ in range(PASSES):
        np.random.shuffle(places)
        for chosen in np.array_split(places, MINIBATCHES):
            b_obs, b_actions, b_logprobs, b_advantages, b_returns = (one[chosen] for one in flat)
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs, b_actions)
            ratio = (newlogprob - b_logprobs).exp()
            policy = torch.max(-b_advantages * ratio, -b_advantages * ratio.clamp(0.8, 1.2)).mean()
            loss = policy - 0.01 * entropy.mean() + 0.25 * (newvalue.flatten() - b_returns).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    note(update, 0, loss)
    reach("end", update)
report(agent, optimizer, envs, next_obs, global_step, np.random.random())
