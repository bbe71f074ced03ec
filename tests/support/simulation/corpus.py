"""Stories on disk that once found a fault. Tests simulate them first, and a sweep adds each story that fails."""

from __future__ import annotations

from pathlib import Path

from tests.support.simulation import story as stories
from tests.support.simulation.job import Job, simulate
from tests.support.simulation.laws import Broken
from tests.support.simulation.story import Story

FOLDER = Path(__file__).parents[2] / "simulation" / "corpus"
_COMMAND = "python -m pytest -n 0 tests/simulation/test_corpus.py -k"


def kept() -> list[Path]:
    """Return the paths of all stories on disk, sorted."""
    return sorted(FOLDER.glob("*.json"))


def simulate_seed(seed: int, story: Story, folder: Path = FOLDER) -> Job:
    """Simulate a story of a sweep.

    Raises:
        Broken: a law does not hold. The story is then kept in `folder`, and the message says how to repeat it.
    """
    try:
        return simulate(story)
    except Broken as error:
        sentence = str(error).partition("\n")[0]
        path = folder / f"seed_{seed}.json"
        stories.write(path, story, f"A sweep has found it: {sentence}.")
        raise Broken(f"{error}\n\nkept as {path}; again: {_COMMAND} seed_{seed}") from error
