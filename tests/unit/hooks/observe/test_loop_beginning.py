"""Which loops begin at their first pass in every attempt, and which scripts ask the job where it is."""

from __future__ import annotations

import ast
import sys
from types import FrameType

import pytest
from torch.utils.data import DataLoader

from ftlaunch_hooks.observe import loop_beginning


@pytest.mark.parametrize(
    "source",
    ["range(job.step // 20, 3)", "job.steps(60)", "job.resumed", "self.job.step + 1", "trainer.restored_from",
     "for epoch in job.epochs(3): pass", "run(job.batches(loader))", "from ftlaunch_hooks import peek", "mine.step"],
)  # fmt: skip
def test_a_script_that_asks_is_known(source: str) -> None:
    assert loop_beginning._mentions(ast.parse(source), {"job", "mine"})


@pytest.mark.parametrize("source", ["optimizer.step()", "config.steps", "job.step_done()", "self.step += 1", "job"])
def test_what_asks_something_else_is_no_question(source: str) -> None:
    assert not loop_beginning._mentions(ast.parse(source), {"job"})


class Trainer:
    loader = None

    def __init__(self) -> None:
        self.loader_of_mine = DataLoader([1, 2])  # type: ignore[arg-type]
        self.start = 2

    @property
    def batches_of_mine(self) -> None:
        raise AssertionError("no code of the script's is run")


def frame_with(loader: object, trainer: Trainer) -> FrameType:
    return sys._getframe()


@pytest.mark.parametrize(
    ("iterated", "begins"),
    [("range(3)", True), ("range(0, 3)", True), ("tqdm(range(3))", True), ("trange(3)", True), ("loader", True),
     ("enumerate(loader)", True), ("trainer.loader_of_mine", True), ("range(start, 3)", False),
     ("trainer.batches_of_mine", False), ("source()", False), ("range(trainer.start, 3)", False), ("items", False)],
)  # fmt: skip
def test_loops_that_begin_at_their_first_pass_are_known(iterated: str, begins: bool) -> None:
    frame = frame_with(DataLoader([1, 2]), Trainer())  # type: ignore[arg-type]
    expression = ast.parse(iterated, mode="eval").body
    assert loop_beginning._begins_anew(expression, frame) is begins


def test_the_loops_around_a_line_are_found_from_the_outside() -> None:
    def body() -> None:
        for _ in range(2):
            if _ == 1:
                for _ in range(3):
                    lines.append(sys._getframe().f_lineno)
            else:
                lines.append(sys._getframe().f_lineno)

    lines: list[int] = []
    body()
    outside, inside = lines[0], lines[1]
    found = [loop_beginning._loops_around(body.__code__, line) for line in (outside, inside)]
    assert [[ast.unparse(loop.iter) for loop in loops] for loops in found] == [["range(2)"], ["range(2)", "range(3)"]]
