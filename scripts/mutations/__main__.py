"""Omits or alters one thing of what a shape of the zoo has saved, resumes, and checks whether that stays silent.

    python -m scripts.mutations --count 1000 --seed 1

Each exact shape lives once undisturbed, and once until it is killed. For each mutation the killed ranks' memory is put
back, one thing in it is altered, and the shape is resumed. The outcomes:

    exact      the end is that of the undisturbed life: what was altered does not matter
    idle       every loss and all else is as in that life; only the object with the altered number differs
    verified   the proof of the resume says that the restored state, or a step, is another one
    rounded    the state is another one, and the proof says that it differs by rounding
    named      the state is another one, and a line says what is not exact
    refused    the ranks end with an error
    unsampled  the state is another one, and nobody says so: one value was altered of a tensor so large that only a
               sample of its values is checked
    SILENT     the state is another one, and nobody says so

Exits with 1 if any outcome is silent, or if an exact end was called different.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from scripts.mutations.lives import Life, Shape
from scripts.mutations.mutation import Mutation, mutate

import ftlaunch_hooks.job.attaching  # noqa: F401 - what every rank imports is imported once
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, Page, page_path
from ftlaunch_contract.pages.proof_record import ProofPart, ProofVerdict

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "tests" / "zoo" / "shapes"
_WIDEST = 400  # characters of a line
_FALSE_ALARM = "false alarm"


def main() -> int:
    """Run all mutations, and print the numbers; return the exit code."""
    options = _parse()
    sys.path.insert(0, str(ROOT))
    draw = random.Random(options.seed)
    found: Counter[tuple[str, str]] = Counter()
    remarks: list[str] = []
    began = time.monotonic()
    # Not a TemporaryDirectory: a forked rank would delete it as the rank ends.
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="mutations-"))
    try:
        shapes = _shapes(options.shapes, folder, remarks)
        began = time.monotonic()
        for number in range(options.count):
            if not shapes or time.monotonic() - began > options.seconds:
                break
            prepared = shapes[number % len(shapes)]
            outcome, kind, line = _mutate_once(prepared, draw)
            found[outcome, kind] += 1
            if outcome in ("SILENT", _FALSE_ALARM):
                remarks.append(f"{outcome}: {line}")
            print(f"{number + 1:5d} {outcome:9s} {line}", flush=True)
    finally:
        shutil.rmtree(folder)
    _print_numbers(found, remarks, time.monotonic() - began)
    return 1 if any(outcome in ("SILENT", _FALSE_ALARM) for outcome, _ in found) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutations")
    parser.add_argument("--count", type=int, default=1000, help="mutations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="end after so long, without what the shapes take that are not altered",
    )
    parser.add_argument("--shapes", nargs="*", help="names; all that are exact if not given")
    return parser.parse_args()


@dataclass(frozen=True)
class Prepared:
    """A shape that resumes exactly here while nothing is altered."""

    shape: Shape
    calm: Life
    """the undisturbed life"""
    lines: set[str]
    """the lines that an unaltered resume writes"""
    step: int
    """the step from which the shape resumes"""


def _shapes(names: list[str] | None, folder: Path, remarks: list[str]) -> list[Prepared]:
    """Prepare the exact shapes that resume exactly on this machine; add a line to `told` for each one that does not."""
    from tests.zoo.test_zoo import ALL

    prepared: list[Prepared] = []
    for name, shape_of_zoo in ALL.items():
        if shape_of_zoo.promise != "Exact" or (names and name not in names):
            continue
        home = folder / name
        home.mkdir()
        shape = Shape(shape_of_zoo.path, shape_of_zoo.ranks, home)
        calm = shape.live_undisturbed()
        step = shape.die()
        if any(calm.codes) or step == NONE:
            remarks.append(f"left out: {name}: it does not run here ({calm.codes}, step {step})")
            continue
        shape.bring_back()
        plain = shape.resume(step)
        if not _is_exact(plain, calm):
            remarks.append(f"left out: {name}: without a mutation it is not exact here {plain.codes}")
            continue
        if any(proof.verdict is ProofVerdict.DIFFERENT for proof in plain.proofs):
            remarks.append(f"{_FALSE_ALARM}: {name} without a mutation")
        prepared.append(Prepared(shape=shape, calm=calm, lines=_lines(plain.log), step=step))
        verdicts = [proof.verdict.name.lower() for proof in plain.proofs]
        print(f"      {name}: resumes from step {step}, {', '.join(verdicts)}", flush=True)
    return prepared


def _mutate_once(prepared: Prepared, draw: random.Random) -> tuple[str, str, str]:
    """Alter one thing, and resume; return the outcome, the kind of the mutation, and a line about it."""
    shape = prepared.shape
    memory = shape.bring_back()
    rank = draw.randrange(shape.ranks)
    page = Page(page_path(memory, rank))
    slot = layout.slot_dir(memory, rank, page.slot_steps().index(prepared.step))
    page.close()
    while (mutation := mutate(slot, draw)) is None:
        pass
    life = shape.resume(prepared.step)
    outcome = _outcome(life, prepared.calm, prepared.lines)
    if outcome == "SILENT" and _is_idle(life, prepared.calm, mutation):
        outcome = "idle"
    if outcome == "SILENT" and not mutation.is_sampled:
        outcome = "unsampled"
    new_lines = sorted(_lines(life.log) - prepared.lines) if outcome == "named" else []
    return outcome, mutation.kind, "; ".join([f"{shape.path.stem} rank {rank}, {mutation}", *new_lines])[:_WIDEST]


def _outcome(life: Life, calm: Life, lines: set[str]) -> str:
    verdicts = {proof.verdict for proof in life.proofs}
    different = {proof.what for proof in life.proofs if proof.verdict is ProofVerdict.DIFFERENT}
    if any(life.codes):
        return "refused"
    if _is_exact(life, calm):
        if different - {ProofPart.OBJECT}:
            return _FALSE_ALARM
        return "verified" if different else "exact"  # an altered object is another state, even if it does not matter
    if different:
        return "verified"
    if ProofVerdict.ROUNDED in verdicts:
        return "rounded"
    return "named" if _lines(life.log) - lines else "SILENT"


def _is_exact(life: Life, calm: Life) -> bool:
    """Return whether a resumed life has the end of the undisturbed one, and made its steps with the same losses."""
    pairs = zip(life.losses, calm.losses, strict=False)
    alike = all(before.get(step) == loss for now, before in pairs for step, loss in now.items())
    return not any(life.codes) and alike and life.finals == calm.finals


def _is_idle(life: Life, calm: Life, mutation: Mutation) -> bool:
    """Return whether training has not used an altered number: only the object that holds the number has another end."""
    pairs = zip(life.finals, calm.finals, strict=True)
    differing = {
        line.split()[0]
        for now, before in pairs
        for line, other in zip(now.splitlines(), before.splitlines(), strict=True)
        if line != other
    }
    is_alike = _is_exact(Life(codes=life.codes, finals=calm.finals, losses=life.losses, log="", proofs=[]), calm)
    return mutation.kind == "number" and is_alike and differing == {mutation.name.partition(".")[0]}


def _lines(log: str) -> set[str]:
    return {line for line in log.splitlines() if line.startswith("ftlaunch: ")}


def _print_numbers(found: Counter[tuple[str, str]], remarks: list[str], seconds: float) -> None:
    kinds = sorted({kind for _, kind in found})
    outcomes = ("exact", "idle", "verified", "rounded", "named", "refused", "unsampled", "SILENT", _FALSE_ALARM)
    print(f"\n{'':12s}" + "".join(f"{kind:>11s}" for kind in (*kinds, "all")))
    for outcome in outcomes:
        row = [found[outcome, kind] for kind in kinds]
        print(f"{outcome:12s}" + "".join(f"{number:11d}" for number in (*row, sum(row))))
    print(f"{found.total()} mutations in {seconds:.0f} s")
    print(json.dumps({outcome: sum(found[outcome, kind] for kind in kinds) for outcome in outcomes}))
    for line in remarks:
        print(line)


if __name__ == "__main__":
    sys.exit(main())
