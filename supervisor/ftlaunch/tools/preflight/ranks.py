"""Asks the job's interpreter, then one process for each rank, started as ranks are; ends all of them."""

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
from ftlaunch.system.programs import program
from ftlaunch_contract import protocol

_PROBE = program("preflight_probe")
_LOOK = 0.05  # seconds between looks for the end of killed processes
_SWEEP = 5.0  # seconds that killed processes are waited for


@dataclass
class Answers:
    """What the processes said; for those that said nothing, what became of them."""

    told: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


def ask_facts(helpers: HelperProcesses, spec: JobSpec, limit: float) -> Answers:
    """Python, torch and devices, as rank 0 would see them."""
    return _ask(helpers, spec, "facts", [0], limit, 0)


def ask_ranks(helpers: HelperProcesses, spec: JobSpec, limit: float) -> Answers:
    """Every rank's matrix product and all_reduce."""
    try:
        port = spec.launch.master_port or processes.free_port(spec.launch.master_addr)
    except OSError as error:
        return Answers(failures={0: f"has no port: {error.strerror}"})
    return _ask(helpers, spec, "rank", range(spec.launch.nproc), limit, port)


def _ask(helpers: HelperProcesses, spec: JobSpec, what: str, ranks: Iterable[int], limit: float, port: int) -> Answers:
    """Start the processes, wait `limit` seconds at most, sweep. The caller is a subreaper."""
    deadline = time.monotonic() + limit
    with tempfile.TemporaryDirectory(prefix="ftlaunch-check-") as place:
        folder, started = Path(place), dict[int, processes.RankProcess]()
        try:
            with _uninterrupted():
                for rank in ranks:
                    started[rank] = _start(spec, what, rank, port, folder)
            _wait(started, deadline)
            return _judge(started, folder, limit)
        except OSError as error:
            return Answers(failures={len(started): f"cannot be started: {error.strerror}"})
        finally:
            _sweep(helpers, started)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C counts at the end: Python swallows a KeyboardInterrupt that comes while hooks around a fork run."""
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
    log, marker = folder / f"{rank}.log", f"{protocol.ENV_MEMORY_DIR}={folder}"
    out = open_log(log)
    try:
        return processes.RankProcess(rank, argv, env, log, out, marker)
    finally:
        os.close(out)


def _wait(started: Mapping[int, processes.RankProcess], deadline: float) -> None:
    """Until all have ended, one has failed (the others would wait for it in vain), or the time is over."""
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
            answers.told[rank] = json.loads(answer.read_text())
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
    """Kill what the ranks have left, and wait for its end, _SWEEP seconds at most: the kernel may hold a process."""
    until = time.monotonic() + _SWEEP
    for process in started.values():
        process.kill_group()
    pids = [process.pid for process in started.values()]
    while True:
        gone = [process.reap() for process in started.values()]
        if (all(gone) and processes.kill_descendants(helpers.pids, pids)) or time.monotonic() > until:
            return
        time.sleep(_LOOK)
