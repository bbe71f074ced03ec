"""Every shape of training goes on bit for bit after two kills, or is refused, or says what is not exact and why.

A shape is run undisturbed, then killed twice as one job: once with its memory left, once with its memory lost, so that
it goes on from storage. What it says it does stands at the end of its docstring: Exact, Refused or Said.
"""

from __future__ import annotations

import ast
import atexit
import multiprocessing
import os
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.system.ports import free_port
from tests.support.harness import FtJob
from tests.support.ranks import PRELOAD

SHAPES = Path(__file__).parent / "shapes"
IN_MAKE_TEST = ("sam",)
IN_CI = (
    "ddp_tensor_parallel",
    "epochs_head_changes",
    "fsdp2_replicas",
    "late_group",
    "run_by_runpy",
)
KILLS = "0:6:memory {last}:13:storage"


@dataclass(frozen=True)
class Shape:
    """One script, and what it promises."""

    path: Path
    ranks: int
    promise: str
    words: str

    @classmethod
    def read(cls, path: Path) -> Shape:
        """From its docstring and its constant RANKS."""
        tree = ast.parse(path.read_text())
        docstring = ast.get_docstring(tree) or ""
        promise, _, words = docstring.rpartition("\n\n")[2].partition(":")
        constants = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "RANKS"
        }
        return cls(path, constants.get("RANKS", 1), promise.strip("."), " ".join(words.split()))


ALL = {path.stem: Shape.read(path) for path in sorted(SHAPES.glob("*.py")) if path.stem != "kit"}


def _run(rank: int, shape: str, environment: dict[str, str]) -> None:
    """One rank of an undisturbed run, in a process of its own."""
    os.environ.clear()  # the fork server's is that of the test that had started it
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    multiprocessing.set_start_method("fork", force=True)  # as in a script, and not as in a fork server's child
    with (Path(environment["ZOO_OUT"]) / f"said_{rank}").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    sys.path.insert(0, str(SHAPES))
    sys.argv = [shape]
    try:
        runpy.run_path(shape, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them, and would leave its memory


def undisturbed(shape: Shape, home: Path, **more: str) -> tuple[list[int], Path]:
    """Run a shape to its end without a supervisor; returns the exit codes, and the folder of what it left.

    more: for the environment.
    """
    out = home / "undisturbed"
    out.mkdir()
    environment = {
        **os.environ,
        "ZOO_OUT": str(out),
        "WORLD_SIZE": str(shape.ranks),
        "LOCAL_WORLD_SIZE": str(shape.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port("127.0.0.1")),
        "FTLAUNCH_CHECKPOINT_DIR": str(home / "checkpoints"),
        "FTLAUNCH_STORAGE_INTERVAL": "off",
        **more,
    }
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    ranks = [context.Process(target=_run, args=(rank, str(shape.path), environment)) for rank in range(shape.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return [process.exitcode for process in ranks], out


def losses(folder: Path) -> list[dict[int, str]]:
    """By rank: step -> loss. A step that was made twice was made alike, or this fails."""
    found = []
    for path in sorted(folder.glob("losses_*")):
        by_step: dict[int, str] = {}
        for line in path.read_text().splitlines():
            step, loss = line.split()
            assert by_step.setdefault(int(step), loss) == loss, f"step {step} was made twice, differently: {path.name}"
        found.append(by_step)
    return found


def finals(folder: Path) -> list[list[str]]:
    """By rank: what it was at its end, a line an object."""
    return [path.read_text().splitlines() for path in sorted(folder.glob("final_*"))]


def disturb(shape: Shape, job: FtJob, kills: str = KILLS, options: tuple[str, ...] = ()) -> Path:
    """Kill a shape, by default twice; returns the folder of what it left.

    Args:
        shape: what is run.
        job: how.
        kills: as ZOO_KILL has them, see kit.py.
        options: of the command, besides.
    """
    out = job.home / "disturbed"
    out.mkdir()
    job.start(
        *("--warm", "--preload", ",".join(("torch._dynamo", "ftlaunch_hooks.job.attaching"))),
        *("--verify-resume", "auto", "--storage-interval", "3", "--max-restarts", "3"),
        *("--backoff-first", "0.05s", "--backoff-max", "0.1s", *options),
        script=shape.path,
        args=(),
        env={"ZOO_OUT": str(out), "ZOO_KILL": kills.format(last=shape.ranks - 1)},
        ranks=shape.ranks,
    )
    job.wait()
    return out


def logs(job: FtJob) -> str:
    return "".join(path.read_text() for path in sorted((job.run_dir / "logs").rglob("*.log")))


def how_long(number: int, name: str) -> tuple[pytest.MarkDecorator, ...]:
    """A few shapes are tried by `make test`, some in CI besides, and every 24th one; all by `make sweep`."""
    if name in IN_MAKE_TEST:
        return ()
    return (pytest.mark.long,) if name in IN_CI or number % 24 == 0 else (pytest.mark.slow,)


@pytest.mark.parametrize("name", [pytest.param(name, marks=how_long(number, name)) for number, name in enumerate(ALL)])
def test_a_shape_keeps_its_promise(name: str, job: FtJob) -> None:
    shape = ALL[name]
    codes, calm = undisturbed(shape, job.home)
    said = "".join(path.read_text() for path in sorted(calm.glob("said_*")))
    if shape.promise == "Refused":
        assert all(codes), said
        assert shape.words in said
        return
    assert not any(codes), said
    broken = disturb(shape, job)
    assert job.supervisor.returncode == 0, job.stderr + logs(job)
    assert len(list(broken.glob("killed_*"))) == 2, "both kills were made"
    sources = [event["source"] for event in job.events("resumed") if event["attempt"] > 0]
    assert sources == ["memory", "storage"], job.journal_text
    if shape.promise == "Said":
        assert logs(job).count(shape.words) >= 1, logs(job)
        return
    assert shape.promise == "Exact"
    assert "is not saved" not in said + logs(job), "a line speaks of an exact run as of one that is not"
    assert job.events("resume_differs") == [], "a resume that is exact is called different"
    assert finals(broken) == finals(calm)
    assert losses(broken) == losses(calm)


def test_a_shape_says_what_it_promises() -> None:
    for name, shape in ALL.items():
        assert shape.promise in ("Exact", "Refused", "Said"), name
        assert shape.promise == "Exact" or shape.words, name
