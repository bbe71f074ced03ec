"""Jobs of several nodes under random faults, in simulated time: the same seed tells the same story."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.simulation.job import Job
from tests.support.simulation.world import World


def simulate(
    seed: int, home: Path, *, faults: int = 5, nodes: int = 3, standbys: int = 1, least: int = 0, requests: int = 0
) -> Job:
    """A job with that many faults and requests for other nodes; a failing one leaves its story in the error."""
    world = World(seed)
    # Long steps are few: an older history and a newer one then stand at the same step often.
    step, steps = (1.0, 40) if seed % 3 == 0 else (0.1, 150)
    job = Job(world, home, nodes=nodes, standbys=standbys, steps=steps, step=step, least=least)
    job.plan_faults(faults, until=30.0)
    job.plan_requests(requests, until=30.0)
    try:
        job.run(until=400.0)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(world.story[-60:])) from error
    finally:
        job.close()
    return job


def loses_steps(story: list[str]) -> bool:
    """Whether an attempt has gone back behind what was reached."""
    return any(" lost" in line and ", 0 steps lost" not in line for line in story)


def test_without_faults_nothing_is_restarted(tmp_path: Path) -> None:
    job = simulate(1, tmp_path, faults=0)
    assert not any("restart" in line for line in job.world.story)
    assert {machine.code for machine in job.machines} == {0}


@pytest.mark.parametrize("first", [0, 10])
def test_every_story_ends_well(first: int, tmp_path: Path) -> None:
    fired, replaced = set(), 0
    for seed in range(first, first + 6):
        home = tmp_path / str(seed)
        home.mkdir()
        job = simulate(seed, home)
        fired |= set(job.fired)
        replaced += sum("takes the head's place" in line for line in job.world.story)
    assert fired == {"rank", "crash", "freeze", "cut", "head", "machine"}
    assert replaced, "no head was replaced by one elsewhere"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 50))
def test_two_thousand_stories(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        home = tmp_path / str(seed)
        home.mkdir()
        simulate(seed, home, faults=seed % 9, nodes=2 + seed % 3, standbys=seed % 2)


def test_the_same_seed_tells_the_same_story(tmp_path: Path) -> None:
    stories = []
    for turn in ("first", "second"):
        (tmp_path / turn).mkdir()
        story = simulate(7, tmp_path / turn).world.story
        stories.append([line.replace(turn, "") for line in story])
    assert stories[0] == stories[1]


def test_planned_changes_of_nodes_lose_no_step(tmp_path: Path) -> None:
    """Taken out: without the save before the nodes change, steps are lost; where a request is a failure, too."""
    asked = grown = 0
    for seed in range(14, 24):  # one of these grows
        home = tmp_path / str(seed)
        home.mkdir()
        story = simulate(seed, home, faults=0, nodes=3, standbys=2, least=2, requests=6).world.story
        asked += sum("asked for other nodes" in line or "SIGTERM to" in line for line in story)
        grown += sum("the job goes on with" in line for line in story)
        assert not loses_steps(story), story
        assert not any("restarting" in line for line in story), story
    assert asked
    assert grown


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_every_story_of_changing_nodes_ends_well(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 6):
        home = tmp_path / str(seed)
        home.mkdir()
        simulate(seed, home, nodes=3, standbys=seed % 2, least=1 + seed % 3, requests=3)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 50))
def test_two_thousand_stories_of_changing_nodes(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        home = tmp_path / str(seed)
        home.mkdir()
        nodes = 2 + seed % 3
        simulate(seed, home, faults=seed % 7, nodes=nodes, standbys=seed % 2, least=1 + seed % nodes, requests=seed % 5)
