"""Lives of a zoo shape's ranks, forked from a process that has imported torch, in a tenth of the time of a start.

This process does what a supervisor does in the simplest case: it makes the pages, decides where the ranks resume, and
waits. The ranks are forked by multiprocessing's fork server, so that below the shape there are only frames of Python's
own, and one of this module's.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.connection
import os
import runpy
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.memory.pages import Pages
from ftlaunch.system.ports import free_port
from ftlaunch_contract import protocol
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.pages.proof_record import Proof, read_proof
from ftlaunch_contract.protocol import Resume

KILL_AT = 8
"""completed steps at which rank 0 is killed"""
_EVERY = 3
"""steps between snapshots, so that two steps are repeated after the kill, and the step that was under way"""
_LONGEST_SECONDS = 120
_PRELOAD = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "ftlaunch_hooks.job.attaching",
    "ftlaunch_hooks.observe.forward_passes",
]
_FORK_SERVER: Any = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(_PRELOAD)


@dataclass(frozen=True)
class Life:
    """What a life of the ranks has left; each list has one entry for each rank."""

    codes: list[int]
    """exit codes"""
    finals: list[str]
    """texts that describe the final states"""
    losses: list[dict[int, str]]
    """step -> loss"""
    log: str
    """the output of all ranks"""
    proofs: list[Proof]
    """what the comparisons after the resume have shown"""


class Shape:
    """A script of the zoo, with the folder in which it lives."""

    def __init__(self, path: Path, ranks: int, home: Path) -> None:
        """Prepare the folder. home: an empty folder, on tmpfs."""
        self.path = path
        self.ranks = ranks
        self._home = home
        self._memory = home / "memory"
        self._template = home / "template"

    def live_undisturbed(self) -> Life:
        """Run the shape to its end."""
        shutil.rmtree(self._memory, ignore_errors=True)
        return self._live("calm", kill="")

    def die(self) -> int:
        """Run the shape until it is killed, and keep its memory; return the step to resume from, or NONE."""
        shutil.rmtree(self._memory, ignore_errors=True)
        self._live("killed", kill=f"0:{KILL_AT}:memory")
        pages = Pages(self._memory, self.ranks)
        step = pages.newest_common()
        for page in pages.pages:
            page.close()
        shutil.rmtree(self._template, ignore_errors=True)
        shutil.copytree(self._memory, self._template)
        return step

    def bring_back(self) -> Path:
        """Put the memory of the killed ranks back; return its folder."""
        shutil.rmtree(self._memory, ignore_errors=True)
        shutil.copytree(self._template, self._memory)
        return self._memory

    def resume(self, step: int) -> Life:
        """Run the shape from what is in memory to its end."""
        return self._live("resumed", kill="", step=step)

    def _live(self, name: str, *, kill: str, step: int = NONE) -> Life:
        out = self._home / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        self._memory.mkdir(mode=0o700, exist_ok=True)
        pages = Pages(self._memory, self.ranks)
        if step == NONE:
            pages.prepare(Resume.FRESH, 0, NONE)
        else:
            pages.prepare(Resume.MEMORY, step, NONE)
        environment = self._environment(out, kill, attempt=0 if step == NONE else 1)
        ranks = [
            _FORK_SERVER.Process(target=be_rank, args=(str(self.path), {**environment, "RANK": str(rank)}))
            for rank in range(self.ranks)
        ]
        for process in ranks:
            process.start()
        codes = _wait_for(ranks)
        proofs = [read_proof(page) for page in pages.pages]
        for page in pages.pages:
            page.close()
        return Life(
            codes=codes,
            finals=[path.read_text() for path in sorted(out.glob("final_*"))],
            losses=[_losses(path) for path in sorted(out.glob("losses_*"))],
            log="".join(path.read_text(errors="replace") for path in sorted(out.glob("log_*"))),
            proofs=proofs,
        )

    def _environment(self, out: Path, kill: str, attempt: int) -> dict[str, str]:
        return {
            "ZOO_OUT": str(out),
            "ZOO_KILL": kill,
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port("127.0.0.1")),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            protocol.ENV_JOB_ID: "mutations",
            protocol.ENV_RUN_DIR: str(self._home / "run"),
            protocol.ENV_CHECKPOINT_DIR: str(self._home / "checkpoints"),
            protocol.ENV_LOAD_CHECKPOINT: "",
            protocol.ENV_MEMORY_DIR: str(self._memory),
            protocol.ENV_CONTROL: str(self._home / "control"),
            protocol.ENV_ATTEMPT: str(attempt),
            protocol.ENV_MEMORY_INTERVAL: str(_EVERY),
            protocol.ENV_GRACE: "5",
            protocol.ENV_SPIKE: "",
            protocol.ENV_COMPARE_REPLICAS: "0",
        }


def be_rank(path: str, environment: dict[str, str]) -> None:
    """Be one rank of a shape, in a process of its own."""
    os.setsid()
    parent = os.getppid()
    os.environ.update(environment, LOCAL_RANK=environment["RANK"])
    os.environ[protocol.ENV_SUPERVISOR] = f"{parent}:{protocol.process_start_time(parent)}"
    with (Path(environment["ZOO_OUT"]) / f"log_{environment['RANK']}").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.path.insert(0, str(Path(path).parent))
    sys.argv = [path]
    multiprocessing.set_start_method("fork", force=True)  # the default of a script, which a fork server's child lacks
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends its processes without these functions


def _wait_for(ranks: list[Any]) -> list[int]:
    """Wait for all ranks; return their exit codes in order.

    If a rank fails, or takes too long, the others are killed.
    """
    deadline = time.monotonic() + _LONGEST_SECONDS
    while living := [rank for rank in ranks if rank.exitcode is None]:
        multiprocessing.connection.wait([rank.sentinel for rank in living], max(0.0, deadline - time.monotonic()))
        if time.monotonic() > deadline or any(rank.exitcode for rank in ranks):
            for rank in living:
                rank.kill()
                rank.join()
    return [rank.exitcode for rank in ranks]


def _losses(path: Path) -> dict[int, str]:
    """Return the loss of each step."""
    return {int(step): loss for step, loss in (line.split() for line in path.read_text().splitlines())}
