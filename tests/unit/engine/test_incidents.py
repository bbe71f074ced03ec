"""Incidents, as the real engine judges them on a clock that jumps."""

from __future__ import annotations

from pathlib import Path

from tests.support.engine import World

from ftlaunch.policy.states import JobState


def test_a_final_error_ends_the_job_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, max_restarts="3")
    world.on_spawn = lambda group: world.train(group, 9)
    world.clock.at(4.5, lambda: world.groups[0].exit(1, 1, "StateError: cannot save growing", final=True))
    world.run()
    (incident,) = world.told("incident")
    assert (incident["verdict"], incident["restarts_left"]) == ("give up", 3)
    assert len(world.groups) == 1
    assert world.supervisor.state is JobState.FAILED
