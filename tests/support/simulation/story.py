"""Stories: a value that describes a simulated job and the faults that happen to it.

A story is drawn by hypothesis or from a seed, kept on disk as JSON, and simulated by `job.simulate`. Everything here
is pure but `read` and `write`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

LENGTHS = (0.3, 1.0, 2.2, 3.5, 8.0)
"""the choices for the seconds that a fault lasts, on both sides of each time-out of the product"""
WAYS = ("both", "up", "down")
BEGIN, END = 2.0, 16.0  # faults begin between these seconds of a story

FAULTS = {
    "rank": "the ranks of {0} fail",
    "crash": "agent and ranks of {0} are killed; the agent is back after {1} s",
    "freeze": "{0} stands still for {1} s",
    "stall": "the agent of {0} is stopped for {1} s, its ranks are not",
    "cut": "the link of {0} is cut ({2}) for {1} s",
    "reset": "the connections of {0} are reset; the other side hears of it {1} s later",
    "head": "the head is killed",
    "head-stall": "the head's process is stopped for {1} s",
    "machine": "machine {0} is lost with its memory; an empty one is back after {1} s",
}
STORAGE = {
    "storage-slow": "the run dir takes up to a second to answer {0} for {1} s",
    "storage-silent": "the run dir answers nobody for {1} s",
    "storage-apart": "the run dir does not answer {0} for {1} s",
    "storage-old": "{0} sees the directory of claims as it is now for {1} s, and the sign of life for 0.3 s",
    "ack-lost": "the next link(2) in the run dir is made, and returns an error",
}
REQUESTS = {
    "grow": "somebody asks for more nodes",
    "drain": "somebody drains the place of {0}",
    "signal": "the agent of {0} gets SIGTERM, where another one can go on",
}
KINDS = {**FAULTS, **STORAGE, **REQUESTS}
"""what can happen, with a sentence for people: {0} is a machine, {1} a number of seconds, {2} a direction"""


@dataclass(frozen=True)
class Fault:
    """One fault or request at one moment."""

    at: float
    """seconds after the beginning"""
    kind: str
    machine: int = 0
    seconds: float = 1.0
    way: str = "both"

    def __str__(self) -> str:
        what = KINDS[self.kind].format(f"m{self.machine}", f"{self.seconds:g}", self.way)
        return f"at {self.at:g} s {what}"


@dataclass(frozen=True)
class Story:
    """One simulated job."""

    seed: int
    """seeds all small chances: how long each message takes, and when each process gets its turn"""
    nodes: int = 2
    standbys: int = 0
    least: int = 0
    """the least number of nodes; 0: `nodes`"""
    steps: int = 80
    step: float = 0.1
    """seconds of a step"""
    delay: float = 0.02
    """the largest number of seconds that a message takes"""
    copies: int = 0
    """steps between copies of snapshots to other nodes; 0: no copies"""
    votes: bool = False
    """whether the nodes elect the head, instead of the run dir that all share"""
    clocks: tuple[float, float] = (0.97, 1.03)
    """the rates of the slowest and of the fastest clock"""
    faults: tuple[Fault, ...] = ()

    @property
    def healed(self) -> float:
        """When the last fault is over, in seconds after the beginning."""
        return max((fault.at + fault.seconds for fault in self.faults), default=0.0)

    def __str__(self) -> str:
        least = "" if self.least in (0, self.nodes) else f", {self.least} at least"
        standbys = f", {self.standbys} standing by" if self.standbys else ""
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)}{least}{standbys}"
        nodes += ", which elect the head" if self.votes else ""
        nodes += f", copies every {self.copies}" if self.copies else ""
        summary = f"{nodes}; {self.steps} steps of {self.step:g} s; seed {self.seed}"
        return "\n".join([summary, *(f"  {fault}" for fault in sorted(self.faults, key=lambda fault: fault.at))])


def of_seed(seed: int, *, kinds: Collection[str] = tuple(KINDS), most: int = 8, **fixed: Any) -> Story:
    """Draw the story of a seed.

    Args:
        seed: the seed; the same seed always draws the same story.
        kinds: the kinds of faults that may happen.
        most: the largest number of faults.
        fixed: fields of `Story` that are given instead of drawn.
    """
    chance = random.Random(seed)
    nodes = fixed.get("nodes") or chance.choice((1, 2, 2, 3, 3, 4))
    base = chance.uniform(0.9, 1.0)
    # There are few long steps, so that an older and a newer history often stand at the same step.
    step, steps = chance.choice(((1.0, 18), (0.25, 50), (0.1, 90)))
    drawn = Story(
        seed=seed,
        nodes=nodes,
        standbys=chance.choice((0, 0, 1, 1, 2)),
        least=chance.choice((0, 0, 1, chance.randint(1, nodes))),
        steps=steps,
        step=step,
        delay=chance.choice((0.002, 0.02, 0.1)),
        clocks=(round(base, 3), round(base * 1.1, 3)),
        copies=random.Random(f"copies {seed}").choice((0, 1, 4)),
    )
    drawn = replace(drawn, **fixed)
    count = chance.randint(0, most)
    names = sorted(kinds)
    favourites = chance.sample(names, k=min(len(names), chance.choice((3, 5, len(names)))))
    found = [_fault(chance, favourites, drawn.nodes + drawn.standbys) for _ in range(count)]
    return replace(drawn, faults=tuple(sorted(found, key=lambda fault: fault.at)))


def _fault(chance: random.Random, kinds: list[str], machines: int) -> Fault:
    at = round(chance.uniform(BEGIN, END), 3)
    return Fault(
        at=at,
        kind=chance.choice(kinds),
        machine=chance.randrange(machines),
        seconds=chance.choice(LENGTHS),
        way=chance.choice(WAYS),
    )


def write(path: Path, story: Story, why: str) -> None:
    """Keep a story on disk. why: a sentence that says what the story is there for."""
    path.write_text(json.dumps({"why": why, **asdict(story)}, indent=1) + "\n")


def read(path: Path) -> Story:
    """Read a story from disk. Raises OSError, ValueError, KeyError or TypeError."""
    fields = json.loads(path.read_text())
    if not fields.pop("why"):
        raise ValueError(f"{path} does not say why it is there")
    fields["faults"] = tuple(Fault(**fault) for fault in fields["faults"])
    fields["clocks"] = tuple(fields["clocks"])
    return Story(**fields)
