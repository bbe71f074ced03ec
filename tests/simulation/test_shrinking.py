"""A story that fails is shrunk to what it needs, and reads like a report."""

from __future__ import annotations

import pytest
from hypothesis import Phase, find, settings
from tests.support.simulation.drawing import stories
from tests.support.simulation.job import simulate
from tests.support.simulation.laws import Broken
from tests.support.simulation.story import FAULTS, Story

from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages

_SEARCH = settings(
    max_examples=400, deadline=None, derandomize=True, database=None, phases=(Phase.generate, Phase.shrink)
)


def shrunk(monkeypatch: pytest.MonkeyPatch) -> tuple[Story, str]:
    """The simplest story that hypothesis finds to fail, and what its failure says."""
    said = {}

    def fails(story: Story) -> bool:
        try:
            simulate(story)
        except Broken as error:
            said[story] = str(error)
            return True
        return False

    found = find(stories(kinds=tuple(FAULTS), copies=(0,)), fails, settings=_SEARCH)
    return found, said[found]


@pytest.mark.slow
@pytest.mark.timeout(600)  # hundreds of stories, one after another
def test_a_failing_story_is_shrunk_to_few_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: what a lost node's memory held counts for the node that takes its place."""
    monkeypatch.setattr(ClusterPages, "forget", lambda self, first, count: None)
    story, said = shrunk(monkeypatch)
    print(said)
    assert len(story.faults) == 1, said
    assert "is to resume at step" in said
    assert str(story.faults[0]) in said
    assert len(said.splitlines()) < 40
