"""Stories drawn by hypothesis, which shrinks a failing story to few and early faults on few machines."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import strategies as st

from tests.support.simulation.story import BEGIN, END, KINDS, LENGTHS, WAYS, Fault, Story

_TENTHS = 10  # tenths of a second: faults at such moments are easy to read


def faults(kinds: Collection[str], machines: int) -> st.SearchStrategy[Fault]:
    """Draw one fault.

    Args:
        kinds: the kinds of faults to choose from, the simplest first.
        machines: the number of machines.
    """
    return st.builds(
        Fault,
        at=st.integers(round(BEGIN * _TENTHS), round(END * _TENTHS)).map(lambda tenths: tenths / _TENTHS),
        kind=st.sampled_from(list(kinds)),
        machine=st.integers(0, machines - 1),
        seconds=st.sampled_from(LENGTHS),
        way=st.sampled_from(WAYS),
    )


@st.composite
def stories(
    draw: st.DrawFn, kinds: Collection[str] = tuple(KINDS), most: int = 8, copies: Sequence[int] = (0, 1, 4)
) -> Story:
    """Draw a story.

    Args:
        draw: hypothesis's own function.
        kinds: the kinds of faults to choose from, the simplest first.
        most: the largest number of faults.
        copies: choices for the number of steps between copies; 0 is a story without copies.
    """
    nodes = draw(st.integers(1, 4))
    standbys = draw(st.integers(0, 2))
    step, steps = draw(st.sampled_from(((1.0, 18), (0.25, 50), (0.1, 90))))
    slowest = draw(st.sampled_from((1.0, 0.95, 0.9)))
    return Story(
        seed=draw(st.integers(0, 1000)),
        nodes=nodes,
        standbys=standbys,
        least=draw(st.integers(0, nodes)),
        steps=steps,
        step=step,
        copies=draw(st.sampled_from(copies)),
        delay=draw(st.sampled_from((0.002, 0.02, 0.1))),
        clocks=(slowest, round(slowest * 1.1, 3)),
        faults=tuple(draw(st.lists(faults(kinds, nodes + standbys), max_size=most))),
    )
