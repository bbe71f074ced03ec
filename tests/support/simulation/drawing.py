"""Stories drawn by hypothesis, which shrinks one that fails to what it needs: few faults, early, of few machines."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import strategies as st

from tests.support.simulation.story import BEGIN, END, KINDS, LENGTHS, WAYS, Fault, Story

_TENTHS = 10  # of a second: what people read easily


def faults(kinds: Collection[str], machines: int) -> st.SearchStrategy[Fault]:
    """One fault. kinds: those that may happen; the first ones are simpler."""
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
    """A story with `most` faults at the most. copies: steps between copies, one of them; 0: none."""
    nodes, standbys = draw(st.integers(1, 4)), draw(st.integers(0, 2))
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
