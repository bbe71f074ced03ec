"""Judges what the lives of a job have left behind: every restore, every lost step, every checkpoint."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import training

from ftlaunch_contract.checkpoint import layout, tensor_file, verify
from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader

# Errors that must never be the last line of a rank's traceback: the death of other ranks may surprise a rank, but its
# own state must not.
_OURS = ("Damaged", "StateError", "SnapshotError", "AttachError", "LookupError", "KeyError", "ValueError", "Assertion")


@dataclass
class Tally:
    """Counts over all jobs, and everything that went wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    restores: Counter[str] = field(default_factory=Counter)
    lost: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))  # source -> steps -> restores
    judged: int = 0
    ends: int = 0
    audited: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, tally: Tally) -> None:
        """Add a job's counts."""
        self.kills += tally.kills
        self.restores += tally.restores
        for source, counts in tally.lost.items():
            self.lost[source] += counts
        for name in ("lives", "judged", "ends", "audited"):
            setattr(self, name, getattr(self, name) + getattr(tally, name))
        self.problems += tally.problems


@dataclass(frozen=True)
class Life:
    """One attempt, as far as it got."""

    name: str
    step: int  # the restored step
    source: str | None  # where the state came from; None for a fresh start
    reached: int  # the newest step that all ranks had completed


def read_lives(out: Path, ranks: int, tally: Tally) -> list[Life]:
    """Return every life that got far enough to compare its state, in order; add the problems to `tally`."""
    judged: dict[str, list[dict[str, Any]]] = defaultdict(list)
    ended: Counter[str] = Counter()
    path = out / "judged.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        note = json.loads(line)
        if not note["same"]:
            tally.problems.append(f"{out}: rank {note['rank']} of life {note['life']} differs at step {note['step']}")
        if note["source"] == "end":
            ended[note["life"]] += 1
        else:
            judged[note["life"]].append(note)
    if ranks in ended.values():
        tally.ends += 1
    else:
        tally.problems.append(f"{out}: in no life did all ranks end with the undisturbed run's state")
    tally.judged += len(judged)
    lives = []
    for name in sorted(judged, key=lambda name: tuple(map(int, name.split(".")))):
        notes = judged[name]
        if len({(note["step"], note["source"]) for note in notes}) > 1:
            tally.problems.append(f"{out}: the ranks of life {name} have restored different things: {notes}")
        step = notes[0]["step"]
        begun = [_number(out / f"progress_{name}_{rank}") for rank in range(ranks)]
        lives.append(Life(name=name, step=step, source=notes[0]["source"], reached=max(step, min(begun))))
    return lives


def _number(path: Path) -> int:
    text = path.read_text() if path.exists() else ""
    return int(text) if text.strip() else -1


def judge_lives(out: Path, lives: list[Life], wiped: Mapping[int, int], tally: Tally) -> None:
    """Count restores and lost steps in `tally`, and add what must not happen as problems.

    Args:
        out: the job's folder.
        lives: the job's lives, in order.
        wiped: the generation of a supervisor that began without the memory of the one before -> the newest step in
            storage at that time, or 0.
        tally: the counts.
    """
    reached = 0
    generation = 0
    for life in lives:
        source = life.source or "fresh"
        lost = reached - life.step
        now = int(life.name.split(".")[0])
        stored = {wiped[g] for g in range(generation + 1, now + 1) if g in wiped}
        if stored and source == "memory":
            source = "storage"  # an attempt that died before its comparison had put the step into memory again
        # A whole snapshot may exist before its step is noted as begun: -1 lost steps count as none.
        fine = life.step in stored if stored else -1 <= lost <= 1
        if not fine or (source == "fresh" and reached and 0 not in stored):
            tally.problems.append(
                f"{out}: life {life.name} began at step {life.step} ({source}); {reached} was reached, storage had "
                f"{sorted(stored) or 'nothing to do with it'}"
            )
        if reached or life.source:
            tally.restores[source] += 1
            tally.lost[source][max(lost, 0)] += 1
        reached = life.reached
        generation = now


def judge_logs(out: Path, tally: Tally) -> None:
    """Add each rank that failed over its own state to the problems."""
    for log in out.glob("run/logs/attempt_*/rank_*.log"):
        for line in log.read_text(errors="replace").splitlines():
            words = line.split("]: ", 1)[-1].split(":", 1)[0].rsplit(".", 1)[-1]
            if words.startswith(_OURS):
                tally.problems.append(f"{log}: {line}")


def judge_checkpoints(directories: list[Path], oracle: Path, kind: str, size: str) -> list[str]:
    """Verify, load and compare committed checkpoints; return what is wrong."""
    problems = []
    for state, digest, expected in _loaders(oracle, kind, size):
        for directory in directories:
            try:
                step = verify.verify(directory)["step"]
                state.restore(CheckpointReader(directory))
            except (tensor_file.Damaged, StateError, OSError) as error:
                problems.append(f"{directory}: {error}")
                continue
            state.restore_rng()
            if digest() != expected[step]:
                problems.append(f"{directory}: it is not the state of step {step}")
    return problems


def _loaders(oracle: Path, kind: str, size: str) -> Iterator[tuple[RankState, Callable[[], str], list[str]]]:
    """Yield what a checkpoint is loaded into, a function that digests that state, and the expected digests by step.

    One process loads everything that the ranks share. Loose ranks have states of their own, which are loaded one by
    one.
    """
    if kind != "loose":
        whole = training.Training(kind, size, 0, whole=True)
        expected = json.loads((oracle / "whole.json").read_text())
        yield RankState(whole.objects(), (), rank=0, world_size=1), lambda: whole.digest(whole=True), expected
        return
    own = sorted(oracle.glob("rank_*.json"))
    for rank, digests in enumerate(own):
        loose = training.Training(kind, size, rank, whole=True)
        state = RankState(loose.objects(), (), rank=rank, world_size=len(own))
        yield state, loose.digest, json.loads(digests.read_text())


def judge_quarantine(checkpoints: Path) -> list[str]:
    """Return each refused checkpoint as a problem, but not the older self of a step that was rightly made again."""
    notes = {note: note.read_text() for note in (checkpoints / layout.QUARANTINE).glob("*.why.txt")}
    return [f"{note}: {text.strip()}" for note, text in notes.items() if "made this step again" not in text]
