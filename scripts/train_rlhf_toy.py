"""Several models in one job: reinforcement learning from (toy) human feedback, small enough for a CPU.

A policy writes short sequences of tokens, a reward model scores them, a value model predicts the score, and a
reference model keeps the policy near its beginnings: PPO, as in InstructGPT (https://arxiv.org/abs/2203.02155).
Policy and value are trained; reward and reference are frozen, and are made from their seed in every life.

An episode is `--rollouts` steps in which the policy writes, then `--iterations` steps in which it learns from
what it has written. What is half done is part of the state: the rollouts so far, the episode, the iteration and
the prompts consumed. So a crash anywhere in an episode costs no sequence, and the run ends as if undisturbed::

    python scripts/train_rlhf_toy.py
    ftlaunch configs/train_rlhf_toy.yaml

The two settings with which ChatLearn resumes an alignment job stand in the job spec, under ChatLearn's names:
`data_checkpoint_path` and `enable_resume_training`. Without ftlaunch they are FTLAUNCH_CHECKPOINT_DIR and
FTLAUNCH_FRESH=1.
"""

import argparse
import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import ftlaunch_hooks as ft

VOCABULARY = 24  # tokens
LENGTH = 12  # tokens that the policy adds to a prompt
PROMPTS = 2048  # in the data set; a prompt is one token and a mood, on which the reward depends
MOODS = 4

Experience = dict[str, Tensor]


class Net(nn.Module):
    """The trunk of all four models: maps mood, place and the last token to `outputs` numbers."""

    def __init__(self, outputs: int, width: int = 48) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.mood = nn.Embedding(MOODS, width)
        self.place = nn.Embedding(LENGTH, width)
        self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, outputs))

    def forward(self, tokens: Tensor, mood: Tensor, place: Tensor) -> Tensor:
        """Map tokens and places of shape (...,), with moods that fit them, to (..., outputs)."""
        return self.body(self.token(tokens) + self.mood(mood) + self.place(place))


def net_inputs(said: Tensor, mood: Tensor) -> dict[str, Tensor]:
    """Return the inputs of a `Net` for all places of sequences at once.

    Args:
        said: prompts with what was added to them, of shape (batch, LENGTH + 1).
        mood: the mood of each prompt, of shape (batch,).
    """
    return {
        "tokens": said[:, :-1],
        "mood": mood[:, None].expand(-1, LENGTH),
        "place": torch.arange(LENGTH).expand(len(said), -1),
    }


class Rollouts:
    """What the policy has written in this episode, which a policy that has changed cannot write again."""

    def __init__(self) -> None:
        self.chunks: list[Experience] = []

    def all(self) -> Experience:
        """Return all chunks as one."""
        return {name: torch.cat([chunk[name] for chunk in self.chunks]) for name in self.chunks[0]}

    def state_dict(self) -> dict[str, Any]:
        """Return the chunks so far."""
        return {"chunks": self.chunks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the chunks of before."""
        self.chunks = state["chunks"]


class Models:
    """The four models, and the optimizers of the two that are trained."""

    def __init__(self, seed: int, world_size: int) -> None:
        torch.manual_seed(seed)  # the same on every rank, and in every life
        self.policy = Net(VOCABULARY)
        self.value = Net(1)
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        self.reward = Net(VOCABULARY).requires_grad_(False)
        self.trained_policy: nn.Module = self.policy
        self.trained_value: nn.Module = self.value
        if world_size > 1:
            self.trained_policy = DistributedDataParallel(self.policy)
            self.trained_value = DistributedDataParallel(self.value)
        self.policy_optimizer = torch.optim.AdamW(self.policy.parameters(), lr=3e-3)
        self.value_optimizer = torch.optim.AdamW(self.value.parameters(), lr=1e-2)

    @torch.no_grad()
    def roll_out(self, prompts: Tensor, kl_weight: float) -> Experience:
        """Let the policy continue `prompts` (batch, 2: token and mood), and score what it writes."""
        token, mood = prompts.unbind(1)
        tokens = [token]
        for place in range(LENGTH):
            logits = self.policy(tokens[-1], mood, torch.tensor(place))
            tokens.append(torch.multinomial(F.softmax(logits, dim=-1), 1).squeeze(1))
        said = torch.stack(tokens, 1)  # (batch, LENGTH + 1)
        view = net_inputs(said, mood)
        chosen = said[:, 1:, None]
        log_chance = F.log_softmax(self.policy(**view), -1).gather(-1, chosen).squeeze(-1)
        kl = log_chance - F.log_softmax(self.reference(**view), -1).gather(-1, chosen).squeeze(-1)
        score = torch.tanh(self.reward(**view)).gather(-1, chosen).squeeze(-1)
        returns = (score - kl_weight * kl).flip(1).cumsum(1).flip(1)  # of each place: what is still to come
        advantage = returns - self.value(**view).squeeze(-1)
        names = ("said", "mood", "log_chance", "returns", "advantage", "score", "kl")
        return dict(zip(names, (said, mood, log_chance, returns, advantage, score.mean(1), kl.mean(1)), strict=True))

    def learn(self, batch: Experience, clip: float) -> float:
        """Make one PPO iteration on a mini-batch; return the policy's loss."""
        said = batch["said"]
        view = net_inputs(said, batch["mood"])
        log_chance = F.log_softmax(self.trained_policy(**view), -1).gather(-1, said[:, 1:, None]).squeeze(-1)
        ratio = (log_chance - batch["log_chance"]).exp()
        advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-6)
        policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
        value_loss = F.mse_loss(self.trained_value(**view).squeeze(-1), batch["returns"])
        for loss, optimizer in ((policy_loss, self.policy_optimizer), (value_loss, self.value_optimizer)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return policy_loss.item()


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Align a toy policy with a toy reward.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=40, help="episodes in all")
    parser.add_argument("--rollouts", type=int, default=4, help="steps of an episode in which the policy writes")
    parser.add_argument("--iterations", type=int, default=8, help="steps of an episode in which it learns")
    parser.add_argument("--batch-size", type=int, default=32, help="prompts a rank and rollout")
    parser.add_argument("--kl-weight", type=float, default=0.1, help="how much straying from the reference costs")
    parser.add_argument("--clip", type=float, default=0.2, help="PPO's bound on the change of a chance")
    parser.add_argument("--seed", type=int, default=1, help="of everything random")
    parser.add_argument("--out", type=Path, default=Path("out/train_rlhf_toy"), help="where to write")
    return parser.parse_args()


def main() -> None:
    """Align, and on rank 0 write the scores and the two trained models."""
    args = parse_args()
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    models = Models(args.seed, world_size)
    drawn = torch.Generator().manual_seed(args.seed)
    prompts = torch.stack([torch.randint(high, (PROMPTS,), generator=drawn) for high in (VOCABULARY, MOODS)], 1)
    sampler = ft.ResumableBatchSampler(
        PROMPTS, args.batch_size, rank=rank, world_size=world_size, seed=args.seed, endless=True
    )
    sample_per_episode = args.rollouts * args.batch_size * world_size
    rollouts = Rollouts()
    progress = ft.chatlearn.DataProgress(sampler, sample_per_episode=sample_per_episode)
    torch.manual_seed(args.seed + rank)  # each rank writes its own
    job = ft.attach(
        policy=models.trained_policy,
        value=models.trained_value,
        policy_optimizer=models.policy_optimizer,
        value_optimizer=models.value_optimizer,
        rollouts=rollouts,
        progress=progress,
        reference=models.reference,
        reward=models.reward,
        frozen=("reference", "reward"),
    )
    loader = iter(DataLoader(prompts, batch_sampler=sampler))  # type: ignore[arg-type]
    args.out.mkdir(parents=True, exist_ok=True)
    scores = (args.out / f"scores_{rank}.csv").open("a", buffering=1)  # a line is one write
    if job.resumed and rank == 0:
        print(f"going on in episode {progress.episode}, iteration {progress.train_iteration} of all")

    for step in job.steps(args.episodes * (args.rollouts + args.iterations)):
        if step % (args.rollouts + args.iterations) < args.rollouts:
            rollouts.chunks.append(models.roll_out(next(loader), args.kl_weight))
            progress.prompts.advance()
            continue
        experience = rollouts.all()
        chosen = torch.randperm(len(experience["said"]))[: args.batch_size]
        loss = models.learn({name: tensor[chosen] for name, tensor in experience.items()}, args.clip)
        score = experience["score"].mean().item()
        kl = experience["kl"].mean().item()
        scores.write(f"{step},{score:.4f},{kl:.4f},{loss.hex()}\n")
        episode = progress.episode
        if progress.end_train_iteration(per_episode=args.iterations):
            if rank == 0:
                print(f"episode {episode}: score {score:+.3f}, KL {kl:.3f}")
            rollouts.chunks = []

    if rank == 0:
        save_file(models.policy.state_dict(), args.out / "policy.safetensors")
        save_file(models.value.state_dict(), args.out / "value.safetensors")
        print(f"{progress.episode} episodes, {progress.consumed_samples} prompts; models in {args.out}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
