"""Incidents, as the real engine judges them on a clock that jumps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.engine import World
from tests.support.fakes.clock import BEGIN
from tests.support.fakes.ranks import FakeGroup

from ftlaunch.policy.states import JobState


def test_a_final_error_ends_the_job_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, max_restarts="3")
    world.on_spawn = lambda group: world.train(group, 9)
    world.clock.at(4.5, lambda: world.groups[0].exit(1, 1, "StateError: cannot save growing", final=True))
    world.run()
    (incident,) = world.fields_of("incident")
    assert (incident["verdict"], incident["restarts_left"]) == ("give up", 3)
    assert len(world.groups) == 1
    assert world.supervisor.state is JobState.FAILED


GLOO = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation to complete"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4"


def trains(home: Path, ranks: int = 3) -> World:
    """A job whose attempts train for nine seconds; then those after the first end well."""
    world = World(home, ranks=ranks)

    def begin(group: FakeGroup) -> None:
        world.train(group, 9)
        if group.attempt:
            world.clock.at(world.clock() - BEGIN + 10, lambda: world.finish(group))

    world.on_spawn = begin
    return world


def test_a_rank_that_has_timed_out_has_the_others_examined(tmp_path: Path) -> None:
    """Rank 1 lags by a step; rank 0 ends over its own time-out. Nobody is asked to leave before the autopsy."""
    world = trains(tmp_path)
    world.clock.at(4.5, lambda: world.groups[0].ranks[1].beat(3))
    world.clock.at(4.6, lambda: world.groups[0].exit(0, 1, GLOO))
    world.run()
    (seen,), (incident,) = world.fields_of("hang_seen"), world.fields_of("incident")
    assert (seen["rule"], seen["rank"]) == ("timeout", 0)
    assert (incident["kind"], incident["rank"], incident["step"]) == ("hang", 1, 3)
    assert "rank 0 has ended over a time-out of its own" in incident["sentence"]
    assert "2 of 3 restarts left" in incident["sentence"]
    assert (incident["restarts_left"], incident["hang_restarts_left"]) == (2, 2)
    assert world.groups[0].calls == ["spawn", "ask to leave", "sweep"]
    assert world.supervisor.state is JobState.DONE


@pytest.mark.parametrize(
    ("ends", "kind", "rank"),
    [
        ({0: (1, GLOO), 1: (1, GLOO), 2: (1, CLOSED)}, "comm-timeout", 0),
        ({2: (1, CLOSED), 1: (-9, ""), 0: (1, GLOO)}, "killed", 1),
        ({2: (1, CLOSED)}, "comm", 2),
    ],
)
def test_nobody_is_examined_where_none_lives_or_one_has_failed_by_itself(
    tmp_path: Path, ends: dict[int, tuple[int, str]], kind: str, rank: int
) -> None:
    world = trains(tmp_path)
    world.clock.at(4.5, lambda: [world.groups[0].exit(number, *how) for number, how in ends.items()])  # type: ignore[func-returns-value]
    world.run()
    (incident,) = world.fields_of("incident")
    assert world.fields_of("hang_seen") == []
    assert (incident["kind"], incident["rank"]) == (kind, rank)


def test_what_the_awaited_rank_dies_of_meanwhile_is_the_cause(tmp_path: Path) -> None:
    world = trains(tmp_path)
    world.clock.at(4.6, lambda: world.groups[0].exit(0, 1, GLOO))
    world.clock.at(4.605, lambda: world.groups[0].exit(1, -11))
    world.run()
    (incident,) = world.fields_of("incident")
    assert len(world.fields_of("hang_seen")) == 1
    assert (incident["kind"], incident["rank"]) == ("signal", 1)


@pytest.mark.parametrize(("ends", "kind", "rank", "judged"), [(4.9, "exit", 1, 4.9), (9.0, "comm", 0, 6.6)])
def test_who_has_closed_a_connection_is_waited_for(
    tmp_path: Path, ends: float, kind: str, rank: int, judged: float
) -> None:
    """Rank 1 calls sys.exit(17) and ends a while after its connections. Tried: it fails without `_may_culprit_exit`."""
    world = trains(tmp_path)
    world.clock.at(4.6, lambda: world.groups[0].exit(0, 1, CLOSED))
    world.clock.at(ends, lambda: world.groups[0].exit(1, 17))
    world.run()
    (incident,) = world.fields_of("incident")
    assert (incident["kind"], incident["rank"]) == (kind, rank)
    assert judged <= world.groups[1].started - BEGIN < judged + 0.2
