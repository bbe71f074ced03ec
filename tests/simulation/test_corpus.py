"""Stories that have found a bug once, in the code or in the simulation: each ends well now, the same every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.simulation import corpus
from tests.support.simulation import story as stories
from tests.support.simulation.job import simulate
from tests.support.simulation.laws import Broken, Laws
from tests.support.simulation.story import of_seed


@pytest.mark.parametrize("path", corpus.kept(), ids=lambda path: path.stem)
def test_a_kept_story_ends_well(path: Path) -> None:
    job = simulate(stories.read(path))
    assert job.over


def test_a_story_is_read_as_it_was_written(tmp_path: Path) -> None:
    for seed in range(20):
        stories.write(tmp_path / "a.json", of_seed(seed), "to be read")
        assert stories.read(tmp_path / "a.json") == of_seed(seed)


def test_a_sweep_keeps_what_fails_and_says_how_to_repeat_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = replace(of_seed(3), faults=())
    monkeypatch.setattr(Laws, "ended", lambda self, code, head: self.broken(f"it has ended with {code}"))
    with pytest.raises(Broken, match=r"(?s)it has ended with 0.*the last events.*again: python -m pytest .* seed_3"):
        corpus.simulate_seed(3, story, tmp_path)
    assert stories.read(tmp_path / "seed_3.json") == story
