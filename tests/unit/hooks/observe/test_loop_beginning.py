"""Which loops begin at their first pass in every attempt, and which scripts ask the job where it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
from torch.utils.data import DataLoader

from ftlaunch_hooks.observe.loop_beginning import BeginningLoop, Place, beginning_loop, places_of

ROOT = Path(__file__).parents[5]

Look = Callable[[FrameType], None]
"""called by a script in its loops, with its frame"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the script is loaded, besides what is installed: other modules of this process ask a job where it is."""

    def is_of_this_repository(module: ModuleType) -> bool:
        return str(getattr(module, "__file__", None) or "").startswith(str(ROOT))

    loaded = {name: module for name, module in sys.modules.items() if not is_of_this_repository(module)}
    monkeypatch.setattr(sys, "modules", loaded)


def run(path: Path, text: str, look: Look, **names: Any) -> None:
    """Run a script that calls `look()`."""
    path.write_text(text)
    names["look"] = lambda: look(sys._getframe(1))
    exec(compile(text, path, "exec"), names)


def loop_of(path: Path, text: str, **names: Any) -> BeginningLoop | bool:
    """What is said of the loop in which a script calls `look()`."""
    job = object()
    found: list[BeginningLoop | bool] = []
    run(path, text, lambda frame: found.append(beginning_loop(frame, job, [])), mine=job, **names)
    return found[0]


ASKS = """
def asks(job, trainer, loader):
    {source}

for epoch in range(3):
    look()
"""


@pytest.mark.parametrize(
    "source",
    ["range(job.step // 20, 3)", "job.steps(60)", "job.resumed", "self.job.step + 1", "trainer.restored_from",
     "for epoch in job.epochs(3): pass", "run(job.batches(loader))", "from ftlaunch_hooks import peek", "mine.step"],
)  # fmt: skip
def test_a_script_that_asks_is_known(source: str, tmp_path: Path) -> None:
    assert loop_of(tmp_path / "train.py", ASKS.format(source=source)) is True


@pytest.mark.parametrize(
    "source",
    ["optimizer.step()", "config.steps", "job.step_done()", "self.step += 1", "job", "job.step()", "other.step"],
)
def test_what_asks_something_else_is_no_question(source: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    found = loop_of(path, ASKS.format(source=source))
    better = "for epoch in job.epochs(3): for batch in job.batches(loader):"
    assert found == BeginningLoop("for epoch in range(3)", f"{path}:5", better)


class Trainer:
    loader = None

    def __init__(self) -> None:
        self.loader_of_mine = DataLoader([1, 2])  # type: ignore[arg-type]
        self.start = 2
        self.reads = 0

    @property
    def batches_of_mine(self) -> DataLoader[int]:
        self.reads += 1
        return self.loader_of_mine


@pytest.mark.parametrize(
    ("iterated", "begins"),
    [("range(3)", True), ("range(0, 3)", True), ("tqdm(range(3))", True), ("trange(3)", True), ("loader", True),
     ("enumerate(loader)", True), ("trainer.loader_of_mine", True), ("range(start, 3)", False),
     ("trainer.batches_of_mine", False), ("source()", False), ("range(trainer.start, 3)", False), ("items", False)],
)  # fmt: skip
def test_loops_that_begin_at_their_first_pass_are_known(iterated: str, begins: bool, tmp_path: Path) -> None:
    trainer = Trainer()
    loader = trainer.loader_of_mine
    made = {"tqdm": iter, "trange": range, "source": lambda: loader}
    given = {"loader": loader, "trainer": trainer, "start": 2, "items": [1, 2]}
    found = loop_of(tmp_path / "train.py", f"for batch in {iterated}:\n    look()\n    break\n", **made, **given)
    assert isinstance(found, BeginningLoop) is begins
    assert trainer.reads == ("batches" in iterated), "no code of the script's is run but by itself"


NESTED = """
for epoch in range(2):
    if epoch == 0:
        look()
        for batch in range(3):
            look()
    else:
        def called():
            look()
        called()

for number in range(4):
    def late():
        look()
late()
"""


def test_the_loops_around_a_line_are_found_from_the_outside(tmp_path: Path) -> None:
    """With attach() in the outer loop, as its first look() stands there, the inner one is the loop over steps."""
    found: list[tuple[object, object]] = []
    attached_at: list[Place] = []

    def look(frame: FrameType) -> None:
        attached_at.extend(places_of(frame) if not attached_at else ())
        loops = beginning_loop(frame, object(), []), beginning_loop(frame, object(), attached_at)
        one, other = (loop.written if isinstance(loop, BeginningLoop) else loop for loop in loops)
        found.append((one, other))

    run(tmp_path / "train.py", NESTED, look)
    outer = "for epoch in range(2)"
    inner = "for batch in range(3)"
    assert found == [(outer, False), (outer, inner), (outer, inner), (outer, inner), (outer, False), (False, False)]
