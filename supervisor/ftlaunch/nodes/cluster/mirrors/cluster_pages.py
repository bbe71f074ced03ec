"""The pages of all ranks, mirrored at the head.

Orders to the ranks are written to the mirrors and sent to the pages of every node, where `perform` repeats them. Runs
in the head's event loop; `perform` runs in an agent's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftlaunch.memory.pages import Pages
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume

Send = Callable[[str, list[Any]], None]
"""sends a verb of `perform` and its values to all nodes of the attempt"""


class ClusterPages(Pages):
    """`Pages` whose ranks are on other machines.

    The first half of a mirror holds what the nodes report, and the second half the head's orders. Each order below does
    what `Pages` does, and is also sent to the nodes.
    """

    def __init__(self, directory: Path, ranks: int) -> None:
        """Make the mirrors in `directory`. ranks: the largest number of ranks that the job can have."""
        super().__init__(directory, ranks)
        self._all = self.pages
        self.send: Send = lambda verb, values: None
        self.on_decided: Callable[[Resume], None] = lambda kind: None
        """called with the kind of state with which the ranks begin"""
        self.prepared: tuple[Resume, int, int] = (Resume.UNDECIDED, NONE, NONE)
        """where the next attempt resumes: kind, step, and the first step to hold for the saver"""
        self.reported_evidence: dict[int, int] = {}
        """rank -> the newest step of which the rank has left a fingerprint, as its node reported after the attempt"""
        self.every = 0
        """the announced steps between snapshots, or 0"""
        self.copied_every = 0
        """the announced steps between copies to other nodes, or 0"""

    def resize(self, ranks: int) -> None:
        """Change the number of ranks, and forget all snapshots, which fit only the old number."""
        if ranks != len(self.pages):
            self.pages = self._all[:ranks]
            for page in self._all:
                page.format()

    def close(self) -> None:
        """Close all mirrors, including those beyond the present number of ranks."""
        self.pages = self._all
        super().close()

    def forget(self, first: int, count: int) -> None:
        """Clear the mirrors of `count` ranks from `first` on, whose memory is lost."""
        for page in self.pages[first : first + count]:
            page.format()

    def prepare(self, kind: Resume, step: int, persist_at: int) -> None:
        """Prepare the mirrors for an attempt. Nothing is sent: the nodes prepare their pages on the order to spawn."""
        send = self.send
        self.send = lambda verb, values: None
        super().prepare(kind, step, persist_at)
        self.send = send

    def evidence(self) -> dict[int, int]:
        """Return the newest step with a fingerprint by rank, or NONE for ranks that no node has reported."""
        return {rank: self.reported_evidence.get(rank, NONE) for rank in range(len(self.pages))}

    def decide(self, kind: Resume, step: int, persist_at: int) -> None:
        """Announce where to resume, which the ranks wait for."""
        self.reported_evidence = {}
        self.prepared = kind, step, persist_at
        self.on_decided(kind)
        super().decide(kind, step, persist_at)
        self.send("decide", [int(kind), step, persist_at])

    def ask_stop(self, step: int, deadline_ns: int) -> None:
        """Ask all ranks to stop at a step. The deadline travels as the time that is left, because clocks differ."""
        super().ask_stop(step, deadline_ns)
        self.send("stop", [step, deadline_ns - time.monotonic_ns()])

    def ask_leave(self) -> None:
        """Ask all ranks to leave."""
        super().ask_leave()
        self.send("leave", [])

    def hold_at(self, step: int) -> None:
        """Ask all ranks to hold a step for the saver."""
        super().hold_at(step)
        self.send("hold", [step])

    def announce_interval(self, every: int, first: int) -> None:
        """Announce the steps between snapshots, from step `first` on."""
        self.every = every
        super().announce_interval(every, first)
        self.send("every", [every, first])

    def copy_every(self, steps: int) -> None:
        """Announce the steps between copies to other nodes."""
        self.copied_every = steps
        super().copy_every(steps)
        self.send("copy_every", [steps])

    def reading(self, step: int) -> None:
        """Announce the step that the saver reads, so that its slots are not overwritten; NONE for no step."""
        super().reading(step)
        self.send("reading", [step])

    def release(self, step: int) -> None:
        """Announce that the saver no longer needs held snapshots up to `step`."""
        super().release(step)
        self.send("release", [step])

    def went_back(self, step: int) -> None:
        """Announce that checkpoints after `step` have been put aside; NONE for all."""
        super().went_back(step)
        self.send("went_back", [step])


def perform(pages: Pages, verb: str, values: list[Any]) -> None:
    """Repeat on a node's pages what the head has done to the mirrors.

    Args:
        pages: the node's pages.
        verb: the order.
        values: its arguments, integers.

    Raises:
        ValueError: there is no such order, or its values are malformed.
    """
    if not all(isinstance(value, int) and abs(value) < 1 << 62 for value in values):
        raise ValueError(f"a request `{verb}` with {values!r}")
    if verb == "decide" and len(values) == 3:
        pages.decide(Resume(values[0]), values[1], values[2])
    elif verb == "stop" and len(values) == 2:
        pages.ask_stop(values[0], time.monotonic_ns() + values[1])
    elif verb == "every" and len(values) == 2:
        pages.announce_interval(values[0], values[1])
    elif verb == "leave" and not values:
        pages.ask_leave()
    elif verb in ("hold", "reading", "release", "went_back", "copy_every") and len(values) == 1:
        getattr(pages, "hold_at" if verb == "hold" else verb)(values[0])
    else:
        raise ValueError(f"a request `{verb}` with {values!r}")
