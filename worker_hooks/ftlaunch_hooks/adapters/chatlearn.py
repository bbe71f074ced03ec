"""Save ChatLearn's data progress, under ChatLearn's names, in alignment jobs whose loop is the script's own.

ChatLearn keeps the episode, the train iteration, the consumed samples, `sample_per_episode` and `data_ratio` of each
replica, and saves these whenever it saves a checkpoint. Here they are one object, which is attached like the models
and saved in the same commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftlaunch_hooks.data.batch_sampler import PositionedSampler
from ftlaunch_hooks.tensors.json_codec import StateError


class DataProgress:
    """The position of a replica in its data.

    The script advances the position, and `ft.attach(progress=...)` saves and restores it. The sampler of prompts is
    part of this object. Do not attach the sampler by itself: it advances with each rollout and not with each step.

    Attributes:
        prompts: the sampler of the replica's prompts; call its `advance()` after each rollout.
        episode: number of completed episodes.
        train_iteration: number of completed training iterations, over all episodes.
        sample_per_episode: number of prompts in an episode, over all replicas.
        data_ratio: the proportions in which data sets are mixed, None for one data set. The saved value is restored,
            as in ChatLearn.
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
        """Number of prompts consumed, over all replicas and episodes."""
        consumed: int = self.prompts.consumed
        return consumed

    def end_train_iteration(self, *, per_episode: int) -> bool:
        """Count a training iteration, and with the last iteration of an episode the episode.

        Args:
            per_episode: number of training iterations in an episode, 1 or more.

        Returns:
            Whether the episode is over.
        """
        self.train_iteration += 1
        is_last = self.train_iteration % per_episode == 0
        if is_last:
            self.episode += 1
        return is_last

    def state_dict(self) -> dict[str, Any]:
        """Return the progress. `consumed_samples` is for human readers; the sampler's state holds the number, too."""
        return {
            "episode": self.episode,
            "train_iteration": self.train_iteration,
            "consumed_samples": self.consumed_samples,
            "sample_per_episode": self.sample_per_episode,
            "data_ratio": self.data_ratio,
            "prompts": self.prompts.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the progress that `state_dict()` returned.

        Raises:
            StateError: an episode has another number of prompts now, so that an unfinished episode does not fit.
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
