"""A replica's data progress, in ChatLearn's words."""

from __future__ import annotations

import pytest

import ftlaunch_hooks as ft
from ftlaunch_hooks.tensors.json_codec import StateError


def progress(sample_per_episode: int = 64, data_ratio: list[float] | None = None) -> ft.chatlearn.DataProgress:
    sampler = ft.ResumableBatchSampler(100, 4, rank=0, world_size=1, endless=True)
    return ft.chatlearn.DataProgress(sampler, sample_per_episode=sample_per_episode, data_ratio=data_ratio)


def test_it_goes_on_where_it_was() -> None:
    before = progress(data_ratio=[1, 3])
    before.prompts.advance()
    before.episode, before.train_iteration = 2, 5
    after = progress(data_ratio=[1, 1])
    after.load_state_dict(before.state_dict())
    assert after.state_dict() == before.state_dict()
    assert (after.episode, after.train_iteration, after.consumed_samples, after.data_ratio) == (2, 5, 4, [1, 3])


def test_the_last_iteration_of_an_episode_ends_it_also_where_it_was_resumed_in_mid_episode() -> None:
    before = progress()
    assert [before.end_train_iteration(per_episode=3) for _ in range(4)] == [False, False, True, False]
    after = progress()
    after.load_state_dict(before.state_dict())
    assert [after.end_train_iteration(per_episode=3) for _ in range(2)] == [False, True]
    assert (after.episode, after.train_iteration) == (2, 6)


def test_episodes_of_another_length_are_refused() -> None:
    words = "sample_per_episode was 64 when the progress was saved, and is 32 now"
    with pytest.raises(StateError, match=words):
        progress(32).load_state_dict(progress().state_dict())
