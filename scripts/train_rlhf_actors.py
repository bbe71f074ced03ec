"""An alignment job of ChatLearn's shape: one driver, and an actor process each for policy, value, reference and reward.

ftlaunch launches the driver as its only rank; the driver starts the actors, and calls them over pipes. The state of
policy and value is in their actors: the driver attaches a proxy of each, whose `state_dict()` fetches the actor's
model, optimizer and random numbers. Reference and reward are frozen, and are made from their seeds. An actor that dies
ends the driver with a sentence; ftlaunch restarts the driver, and the new actors resume from the step that was
reached::

    python scripts/train_rlhf_actors.py
    ftlaunch --memory-interval 1 scripts/train_rlhf_actors.py

With ChatLearn the actors are Ray's, and its engine is the driver.
"""

import argparse
import hashlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ftlaunch_hooks as ft

NAMES = ("policy", "value", "reference", "reward")
TRAINED = ("policy", "value")
VOCABULARY = 24
PROMPTS = 512
LEARNING_RATE = 1e-2


class Actor:
    """What runs in an actor's process: a model, and its optimizer if the model is trained."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(NAMES.index(name) if name != "reference" else NAMES.index("policy"))
        outputs = 1 if name == "value" else VOCABULARY
        self.model = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Tanh(), nn.Linear(32, outputs))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE) if name in TRAINED else None

    @torch.no_grad()
    def write(self, prompts: Tensor) -> Tensor:
        """Draw a token after each prompt.

        Args:
            prompts: tokens, of shape (batch,).

        Returns:
            The tokens, of shape (batch,).
        """
        return torch.multinomial(F.softmax(self.model(prompts), dim=-1), 1).squeeze(1)

    @torch.no_grad()
    def judge(self, prompts: Tensor, written: Tensor) -> Tensor:
        """Return how likely each pair of tokens is, or, from the value model, how good: a tensor of shape (batch,)."""
        scores = self.model(prompts)
        if scores.shape[1] == 1:
            return scores.squeeze(1)
        return F.log_softmax(scores, -1).gather(1, written[:, None]).squeeze(1)

    def learn(self, prompts: Tensor, written: Tensor, weights: Tensor) -> float:
        """Make one step of training, and return the loss.

        Args:
            prompts: tokens, of shape (batch,).
            written: the token after each prompt, of shape (batch,).
            weights: advantages, or returns for the value model, of shape (batch,).
        """
        assert self.optimizer is not None
        scores = self.model(prompts)
        if scores.shape[1] == 1:
            loss = F.mse_loss(scores.squeeze(1), weights)
        else:
            loss = -(F.log_softmax(scores, -1).gather(1, written[:, None]).squeeze(1) * weights).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a later actor resumes."""
        assert self.optimizer is not None
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        assert self.optimizer is not None
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])


def serve(name: str, pipe: Connection, kill_at: int) -> None:
    """Answer the driver's calls until it closes the pipe.

    Args:
        name: one of NAMES.
        pipe: the actor's end of the pipe.
        kill_at: the number of the call in which this process kills itself; -1 for none.
    """
    torch.set_num_threads(1)
    actor = Actor(name)
    calls = 0
    while True:
        try:
            method, args = pipe.recv()
        except EOFError:
            return
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        pipe.send(getattr(actor, method)(*args))


class Proxy:
    """An actor as the driver sees it."""

    def __init__(self, name: str, kill_at: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(name, theirs, kill_at), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the actor, and return its answer. Raises RuntimeError if the actor has died."""
        try:
            self._pipe.send((method, args))
            return self._pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise RuntimeError(f"the actor {self.name!r} has ended with {self.process.exitcode}") from None

    def state_dict(self) -> dict[str, Any]:
        """Fetch the actor's state."""
        state: dict[str, Any] = self.call("state_dict")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the actor its state back."""
        self.call("load_state_dict", state)


class Alignment:
    """The driver's loop, and what was written in an episode, which a policy that has changed cannot write again."""

    def __init__(
        self, actors: Mapping[str, Proxy], progress: ft.chatlearn.DataProgress, rollouts: int, iterations: int
    ) -> None:
        self._actors = actors
        self._progress = progress
        self._rollouts = rollouts
        self._iterations = iterations
        self._written: list[tuple[Tensor, Tensor]] = []

    def make_step(self, step: int, batches: Iterator[list[int]]) -> None:
        """Write in the first steps of an episode; in the others learn from what was written."""
        if step % (self._rollouts + self._iterations) < self._rollouts:
            prompts = torch.tensor(next(batches)) % VOCABULARY
            self._written.append((prompts, self._actors["policy"].call("write", prompts)))
            self._progress.prompts.advance()
            return
        prompts, written = self._written[int(torch.randint(len(self._written), ()))]
        reward = self._actors["reward"].call("judge", prompts, written)
        reward = reward - self._actors["reference"].call("judge", prompts, written)
        advantage = reward - self._actors["value"].call("judge", prompts, written)
        self._actors["policy"].call("learn", prompts, written, advantage)
        self._actors["value"].call("learn", prompts, written, reward)
        if self._progress.end_train_iteration(per_episode=self._iterations):
            self._written = []

    def state_dict(self) -> dict[str, Any]:
        """Return what was written in this episode."""
        return {"written": [list(pair) for pair in self._written]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with what was written before."""
        self._written = [(prompts, written) for prompts, written in state["written"]]


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Align a toy policy, each model in a process of its own.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--episodes", type=int, default=5, help="episodes in all")
    parser.add_argument("--rollouts", type=int, default=3, help="steps of an episode in which the policy writes")
    parser.add_argument("--iterations", type=int, default=5, help="steps of an episode in which it learns")
    parser.add_argument("--batch-size", type=int, default=16, help="prompts of a rollout")
    parser.add_argument("--out", type=Path, default=Path("out/train_rlhf_actors"), help="where to write")
    parser.add_argument("--kill", default="", help="break it on purpose: ACTOR:CALL, in the first attempt only")
    return parser.parse_args()


def main() -> None:
    """Start the actors, align, and write digests of the two trained models."""
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    victim, _, call = args.kill.partition(":") if os.environ.get("FTLAUNCH_ATTEMPT", "0") == "0" else ("", "", "")
    actors = {name: Proxy(name, int(call) if name == victim else -1) for name in NAMES}
    sampler = ft.ResumableBatchSampler(PROMPTS, args.batch_size, rank=0, world_size=1, seed=1, endless=True)
    progress = ft.chatlearn.DataProgress(sampler, sample_per_episode=args.rollouts * args.batch_size)
    torch.manual_seed(1)
    alignment = Alignment(actors, progress, args.rollouts, args.iterations)
    job = ft.attach(policy=actors["policy"], value=actors["value"], alignment=alignment, progress=progress)
    batches = iter(sampler)
    for step in job.steps(args.episodes * (args.rollouts + args.iterations)):
        alignment.make_step(step, batches)
    for name in TRAINED:
        weights = torch.cat([tensor.flatten() for tensor in actors[name].call("state_dict")["model"].values()])
        (args.out / name).write_text(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    print(f"{progress.episode} episodes, {progress.consumed_samples} prompts; digests in {args.out}")


if __name__ == "__main__":
    main()
