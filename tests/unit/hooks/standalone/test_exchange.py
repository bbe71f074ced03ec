"""What nodes tell each other at boundaries: every node works out the same from the same numbers."""

from __future__ import annotations

import pytest

from ftlaunch_hooks.standalone.nodes.exchange import NodeSays, NodesSay, Rhythm, next_save, rhythm

QUIET = NodeSays(stop=False, save=False, due=False, busy=False, step_us=5_000, every=1, intent=1 << 48 | 30)


def said(*nodes: NodeSays) -> NodesSay:
    """What all nodes learn: the largest of each number."""
    return NodesSay.of([max(column) for column in zip(*(node.numbers() for node in nodes), strict=True)])


def told(**other: bool | int) -> NodeSays:
    return NodeSays(**{**QUIET.__dict__, **other})  # type: ignore[arg-type]


def test_one_node_is_enough_to_stop_all() -> None:
    assert not said(QUIET, QUIET).stop
    assert said(QUIET, told(stop=True)).stop


def test_the_slowest_node_and_the_longest_interval_count() -> None:
    assert said(QUIET, told(step_us=9_000, every=4)) == said(told(step_us=9_000, every=4), QUIET)
    assert (said(QUIET, told(step_us=9_000, every=4)).step_us, said(QUIET, told(every=4)).every) == (9_000, 4)


def test_unequal_numbers_of_steps_are_seen_in_the_same_loop_only() -> None:
    assert said(QUIET, QUIET).unequal_totals() is None
    assert said(QUIET, told(intent=1 << 48 | 20)).unequal_totals() == (30, 20)
    assert said(QUIET, told(intent=2 << 48 | 20)).unequal_totals() is None


@pytest.mark.parametrize(
    ("step_us", "every_steps", "found"),
    [
        (0, None, Rhythm(1, at_once=True)),  # no step has been made
        (300_000, None, Rhythm(1, at_once=True)),
        (100_000, None, Rhythm(1, at_once=False)),
        (5_000, None, Rhythm(10, at_once=False)),
        (10, None, Rhythm(1_000, at_once=False)),
        (5_000, 20, Rhythm(5, at_once=False)),  # so that no save that is due is missed
        (5_000, 1, Rhythm(1, at_once=False)),
    ],
)
def test_exchanges_are_rare_beside_steps(step_us: int, every_steps: int | None, found: Rhythm) -> None:
    assert rhythm(step_us, every_steps) == found


def test_the_next_save_waits_for_every_node() -> None:
    assert next_save(said(QUIET, QUIET), 12, None) is None
    assert next_save(said(QUIET, told(due=True)), 12, None) == 12
    assert next_save(said(told(busy=True), told(due=True)), 12, None) is None
    assert next_save(said(QUIET, QUIET), 12, 10) == 20
    assert next_save(said(QUIET, QUIET), 20, 10) == 20
    assert next_save(said(QUIET, told(save=True)), 12, 10) == 12, "asked for by the script: at once"
