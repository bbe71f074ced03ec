"""Says in sentences what a page leaves out, merges or only counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ftlaunch.common.formatting import times
from ftlaunch.history.events import ODD
from ftlaunch.history.journal import STRANGE, TOO_LONG, TORN
from ftlaunch.views.report_page.gathering.node_lanes import MOST_NODES, MOST_STAYS
from ftlaunch.views.report_page.gathering.step_lines import MOST_LINES
from ftlaunch.views.report_page.gathering.walk import Walk

_WHY_LEFT_OUT = {
    TORN: "is torn: it is no whole JSON",
    TOO_LONG: "is longer than 16 MiB",
    STRANGE: "holds no event",
}


def notes(walk: Walk) -> list[str]:
    """Return a sentence for each thing that the page of a walk leaves out, merges or only counts."""
    return [*_of_the_journal(walk), *_of_incidents(walk), *_of_drawings(walk)]


def _of_the_journal(walk: Walk) -> Iterator[str]:
    for why, count in walk.dropped.items():
        lines = "1 line of the journal is left out: it" if count == 1 else f"{count} lines are left out: each"
        if count and why in _WHY_LEFT_OUT:
            yield f"{lines} {_WHY_LEFT_OUT[why]}."
    if odd := walk.dropped[ODD]:
        lines = "1 line" if odd == 1 else f"{odd} lines"
        yield f"Of {lines} of the journal a field is left out: it holds something else than its name means."


def _of_incidents(walk: Walk) -> Iterator[str]:
    if walk.incidents.folded():
        yield (
            f"{walk.incidents.count} incidents happened: the newest and the most costly {len(walk.incidents.kept())}"
            " are told in full, the others are counted by their kind."
        )


def _of_drawings(walk: Walk) -> Iterator[str]:
    if walk.spans.to_json(0.0) is None and walk.columns is not None:
        yield f"The timeline is drawn in columns of {walk.columns.width:g} s."
    if left_out := walk.nodes.arrivals_left_out:
        yield f"The first {MOST_NODES} nodes are drawn; others came {times(left_out)}, which is only counted."
    if left_out := walk.nodes.stays_left_out:
        yield f"Of nodes that changed their places the first {MOST_STAYS} stays are drawn; {left_out} are left out."
    if walk.lines.cut:
        yield f"Loss and step time are drawn of the first {MOST_LINES} ranks that the journal names; of others not."
