"""A story: what a simulated job is like, and which faults it meets. A value: drawn, kept on disk, shrunk, told."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

LENGTHS = (0.3, 1.0, 2.2, 3.5, 8.0)
"""seconds that a fault lasts: about the time-outs of the product, on both sides of each"""
WAYS = ("both", "up", "down")
BEGIN, END = 2.0, 16.0  # of the time in which faults happen, seconds

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
"""what can happen: {0} is a machine, {1} a number of seconds, {2} a direction"""


@dataclass(frozen=True)
class Fault:
    """One thing that happens."""

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
    """One job."""

    seed: int
    """of all small chances: how long each message takes, when each process gets its turn"""
    nodes: int = 2
    standbys: int = 0
    least: int = 0
    """nodes at least; 0: as many as at most"""
    steps: int = 80
    step: float = 0.1
    """seconds"""
    delay: float = 0.02
    """seconds that a message takes at the most"""
    copies: int = 0
    """steps between copies of snapshots to other nodes; 0: there are none"""
    clocks: tuple[float, float] = (0.97, 1.03)
    """slowest and fastest clock"""
    faults: tuple[Fault, ...] = ()

    @property
    def healed(self) -> float:
        """When the last fault is over."""
        return max((fault.at + fault.seconds for fault in self.faults), default=0.0)

    def __str__(self) -> str:
        least = "" if self.least in (0, self.nodes) else f", {self.least} at least"
        standbys = f", {self.standbys} standing by" if self.standbys else ""
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)}{least}{standbys}"
        nodes += f", copies every {self.copies}" if self.copies else ""
        of = f"{nodes}; {self.steps} steps of {self.step:g} s; seed {self.seed}"
        return "\n".join([of, *(f"  {fault}" for fault in sorted(self.faults, key=lambda fault: fault.at))])


def of_seed(seed: int, *, kinds: Collection[str] = tuple(KINDS), most: int = 8, **fixed: Any) -> Story:
    """The story of a number. kinds: what may happen, `most` times at the most. fixed: fields that are not drawn."""
    chance = random.Random(seed)
    nodes = fixed.get("nodes") or chance.choice((1, 2, 2, 3, 3, 4))
    base = chance.uniform(0.9, 1.0)
    # Long steps are few: an older history and a newer one then stand at the same step often.
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
    count, names = chance.randint(0, most), sorted(kinds)
    favourites = chance.sample(names, k=min(len(names), chance.choice((3, 5, len(names)))))
    found = [_fault(chance, favourites, drawn.nodes + drawn.standbys) for _ in range(count)]
    return replace(drawn, faults=tuple(sorted(found, key=lambda fault: fault.at)))


def _fault(chance: random.Random, kinds: list[str], machines: int) -> Fault:
    at = round(chance.uniform(BEGIN, END), 3)
    return Fault(at, chance.choice(kinds), chance.randrange(machines), chance.choice(LENGTHS), chance.choice(WAYS))


def write(path: Path, story: Story, why: str) -> None:
    """Keep a story on disk. why: for whoever asks what it is there for."""
    path.write_text(json.dumps({"why": why, **asdict(story)}, indent=1) + "\n")


def read(path: Path) -> Story:
    """A story that was kept. Raises OSError, ValueError, KeyError or TypeError."""
    told = json.loads(path.read_text())
    if not told.pop("why"):
        raise ValueError(f"{path} does not say why it is there")
    told["faults"] = tuple(Fault(**fault) for fault in told["faults"])
    told["clocks"] = tuple(told["clocks"])
    return Story(**told)
