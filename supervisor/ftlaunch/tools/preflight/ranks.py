"""Starts probe processes with the job's interpreter, as ranks are started, and collects their answers.

Runs on the main thread of `ftctl check` or `ftlaunch --check`, whose process must be a subreaper. All probes are ended
before a function returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.common.signal_names import signal_name
from ftlaunch.ranks import environment
from ftlaunch.ranks.log_files import open_log, tail
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.placement import on_one_node
from ftlaunch.system import processes
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.ports import free_port
from ftlaunch.system.programs import program
from ftlaunch_contract import protocol

_PROBE = program("preflight_probe")
_POLL_SECONDS = 0.05  # between looks for the end of killed processes
_SWEEP_SECONDS = 5.0  # longest wait for killed processes


@dataclass
class Answers:
    """The answers of probe processes, by rank."""

    received: dict[int, dict[str, Any]] = field(default_factory=dict)
    """the JSON answer of each rank that answered"""
    failures: dict[int, str] = field(default_factory=dict)
    """why a rank gave no answer, as a clause"""


def ask_facts(helpers: HelperProcesses, spec: JobSpec, limit: float) -> Answers:
    """Ask one process for Python, torch and devices, as rank 0 would see them. limit: longest wait in seconds."""
    return _ask(helpers, spec, what="facts", ranks=[0], limit=limit, port=0)


def ask_ranks(helpers: HelperProcesses, spec: JobSpec, limit: float) -> Answers:
    """Let every rank compute a matrix product and an all_reduce. limit: longest wait in seconds."""
    try:
        port = spec.launch.master_port or free_port(spec.launch.master_addr)
    except OSError as error:
        return Answers(failures={0: f"has no port: {error.strerror}"})
    return _ask(helpers, spec, what="rank", ranks=range(spec.launch.nproc), limit=limit, port=port)


def _ask(helpers: HelperProcesses, spec: JobSpec, what: str, ranks: Iterable[int], limit: float, port: int) -> Answers:
    """Start a probe for each rank, wait for their answers, and end them.

    Args:
        helpers: processes that the sweep must spare.
        spec: the job.
        what: `facts` or `rank`, the question for the probe program.
        ranks: numbers of the ranks.
        limit: longest wait in seconds.
        port: port at which the ranks meet.
    """
    deadline = time.monotonic() + limit
    with tempfile.TemporaryDirectory(prefix="ftlaunch-check-") as place:
        folder = Path(place)
        started = dict[int, processes.RankProcess]()
        try:
            with _uninterrupted():
                for rank in ranks:
                    started[rank] = _start(spec, what=what, rank=rank, port=port, folder=folder)
            _wait(started, deadline)
            return _judge(started, folder, limit)
        except OSError as error:
            return Answers(failures={len(started): f"cannot be started: {error.strerror}"})
        finally:
            _sweep(helpers, started)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block: Python swallows a KeyboardInterrupt in hooks around a fork."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, _: came.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _start(spec: JobSpec, what: str, rank: int, port: int, folder: Path) -> processes.RankProcess:
    argv = [spec.launch.python, str(_PROBE), what, str(folder / f"{rank}.json")]
    place = on_one_node(spec.launch.nproc, spec.launch.master_addr, port)
    env = environment.rank_env(spec, os.environ, rank, 0, place, folder, folder / "none", restarts=0)
    log = folder / f"{rank}.log"
    marker = f"{protocol.ENV_MEMORY_DIR}={folder}"
    out = open_log(log)
    try:
        return processes.RankProcess(rank, argv, env, log, out, marker)
    finally:
        os.close(out)


def _wait(started: Mapping[int, processes.RankProcess], deadline: float) -> None:
    """Wait until all have ended, one has failed (for which the others would wait in vain), or the time is over."""
    with selectors.DefaultSelector() as selector:
        for process in started.values():
            selector.register(process.pidfd, selectors.EVENT_READ, process)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fd)
                if key.data.reap() and key.data.returncode != 0:
                    return


def _judge(started: Mapping[int, processes.RankProcess], folder: Path, limit: float) -> Answers:
    answers = Answers()
    failed = any(process.returncode for process in started.values())
    for rank, process in started.items():
        answer = folder / f"{rank}.json"
        if answer.exists():
            answers.received[rank] = json.loads(answer.read_text())
        elif process.returncode is not None:
            answers.failures[rank] = _ended(process)
        elif not failed:
            answers.failures[rank] = f"gave no answer within {duration(limit)} ({_last_words(process)})"
    return answers


def _ended(process: processes.RankProcess) -> str:
    code = process.returncode or 0
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"{how} ({_last_words(process)})"


def _last_words(process: processes.RankProcess) -> str:
    words = [line.strip() for line in tail(process.log).splitlines() if line.strip()]
    return words[-1][:200] if words else "it said nothing"


def _sweep(helpers: HelperProcesses, started: Mapping[int, processes.RankProcess]) -> None:
    """Kill the ranks and their descendants, and wait for their ends.

    The wait takes 5 seconds at most, because the kernel may hold a process for ever.
    """
    until = time.monotonic() + _SWEEP_SECONDS
    for process in started.values():
        process.kill_group()
    pids = [process.pid for process in started.values()]
    while True:
        gone = [process.reap() for process in started.values()]
        if (all(gone) and processes.kill_descendants(helpers.pids, pids)) or time.monotonic() > until:
            return
        time.sleep(_POLL_SECONDS)
