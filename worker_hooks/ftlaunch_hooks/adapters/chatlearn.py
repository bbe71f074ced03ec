"""ChatLearn's data progress, under ChatLearn's names, for alignment jobs whose loop is the script's own.

ChatLearn keeps, for each replica, the episode, the train iteration, the consumed samples, `sample_per_episode` and
`data_ratio`, and saves them whenever it saves a checkpoint. Here they are one object that is attached beside the models
and saved in the same commit with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftlaunch_hooks.data.batch_sampler import PositionedSampler
from ftlaunch_hooks.tensors.json_codec import StateError


class DataProgress:
    """Where a replica stands in its data. The script moves it on; `ft.attach(progress=...)` saves and restores it.

    The sampler is in here, and is not attached by itself, as it moves on with a rollout and not with every step.

    Attributes:
        prompts: the sampler that the replica's prompts come from; call its `advance()` after each rollout.
        episode: episodes that are over.
        train_iteration: iterations of training that are over, of all episodes.
        sample_per_episode: prompts of an episode, over all replicas.
        data_ratio: how the data sets are mixed; None where there is one. What was saved is restored, as in ChatLearn.
    """

    def __init__(
        self, prompts: PositionedSampler, *, sample_per_episode: int, data_ratio: Sequence[float] | None = None
    ) -> None:
        self.prompts: Any = prompts
        self.sample_per_episode = sample_per_episode
        self.data_ratio = None if data_ratio is None else list(data_ratio)
        self.episode = 0
        self.train_iteration = 0

    @property
    def consumed_samples(self) -> int:
        """Prompts consumed, over all replicas and episodes."""
        consumed: int = self.prompts.consumed
        return consumed

    def end_train_iteration(self, *, per_episode: int) -> bool:
        """Count an iteration of training; the last one of an episode ends the episode.

        Args:
            per_episode: iterations of training in an episode, 1 or more.

        Returns:
            Whether the episode is over.
        """
        self.train_iteration += 1
        is_last = self.train_iteration % per_episode == 0
        if is_last:
            self.episode += 1
        return is_last

    def state_dict(self) -> dict[str, Any]:
        """Return the progress. `consumed_samples` is there for people: the sampler's state has it as well."""
        return {
            "episode": self.episode,
            "train_iteration": self.train_iteration,
            "consumed_samples": self.consumed_samples,
            "sample_per_episode": self.sample_per_episode,
            "data_ratio": self.data_ratio,
            "prompts": self.prompts.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict()` has returned.

        Raises:
            StateError: episodes have another number of prompts now, so that what is half done does not fit.
        """
        before = state["sample_per_episode"]
        if before != self.sample_per_episode:
            raise StateError(
                f"cannot resume: sample_per_episode was {before} when the progress was saved, and is"
                f" {self.sample_per_episode} now; an episode that is half done cannot be finished with other numbers:"
                f" give {before}"
            )
        self.episode = state["episode"]
        self.train_iteration = state["train_iteration"]
        self.data_ratio = state["data_ratio"]
        self.prompts.load_state_dict(state["prompts"])
