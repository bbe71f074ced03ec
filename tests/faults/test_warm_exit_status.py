"""How a forked rank ends: with the status, the words and the files of a started one."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.harness import JOBS

from ftlaunch.ranks import environment
from ftlaunch.ranks.fork_client import RankToFork, Warm
from ftlaunch.ranks.log_files import open_log
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.processes import Leader, RankProcess

MARKER = "FT_TEST_WARM=1"


class Nursery:
    """Does with a warm parent what the supervisor does, here in the test."""

    def __init__(self, home: Path, script: Path, **flags: str) -> None:
        self.home = home
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("FTLAUNCH")}
        self.spec = resolve(str(script), (), {"run_dir": str(home / "run"), "warm": "true", **flags}, self.env)
        env = environment.warm_env(self.spec, self.env, home)
        self.warm = Warm(HelperProcesses(), self.spec, env, home / "warm.log", FileThread(home), lambda *_, **__: None)
        while self.warm.starting:
            assert self.warm.link is not None
            assert select.select([self.warm.link.fd], [], [], 60)[0]
            self.warm.handle_message()

    def orders(self, envs: list[dict[str, str]]) -> dict[int, RankToFork]:
        return {n: RankToFork({**self.env, **env}, self.home / f"forked_{n}.log") for n, env in enumerate(envs)}

    def end(self, ranks: Mapping[int, Leader]) -> list[int]:
        for rank in ranks.values():
            if rank.returncode is None:
                assert select.select([rank.pidfd], [], [], 60)[0]
                assert rank.reap()
        return [ranks[number].returncode or 0 for number in sorted(ranks)]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Callable[..., Nursery]]:
    made = []
    prctl = ctypes.CDLL(None).prctl
    prctl(36, 1, 0, 0, 0)

    def make(script: Path, **flags: str) -> Nursery:
        made.append(Nursery(tmp_path, script, **flags))
        return made[-1]

    yield make
    for one in made:
        one.warm.close()
    prctl(36, 0, 0, 0, 0)


ENDS = [
    "exit 0", "exit 1", "exit 2", "exit 3", "exit 75", "exit 255", "exit 256", "text", "none", "interrupt", "sigint",
    "thread", "thread fails", "hook", "hook exits", "syntax", "raise", "atexit fails", "segv", "abort", "closed",
    "now 1", "now 75", "now 255", "signal 9", "signal 15", "signal 34",
]  # fmt: skip


@pytest.mark.slow
def test_every_exit_status_arrives(nursery: Callable[..., Nursery]) -> None:
    nest = nursery(JOBS / "warm_ends.py", preload="quick")
    deadly = [int(s) for s in signal.valid_signals() if s not in (17, 18, 19, 20, 21, 22, 23, 28)]
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python
    deadly = [number for number in deadly if number not in ignored and number != signal.SIGINT]
    ends = [{"END": f"now {code}"} for code in range(256)] + [{"END": f"signal {number}"} for number in deadly]
    ranks = nest.warm.fork(nest.orders(ends), MARKER)
    assert len(ranks) == len(ends)
    assert nest.end(ranks) == [*range(256), *(-number for number in deadly)]


@pytest.mark.slow
def test_the_end_is_the_same_and_so_are_its_words(nursery: Callable[..., Nursery], tmp_path: Path) -> None:
    nest = nursery(JOBS / "warm_ends.py", preload="quick")
    orders = nest.orders([{"END": end, "PYTHONFAULTHANDLER": "1"} for end in ENDS])
    forked = nest.end(nest.warm.fork(orders, MARKER))
    argv = environment.rank_argv(nest.spec)
    plain = {n: tmp_path / f"started_{n}.log" for n in orders}
    started = nest.end(
        {n: RankProcess(n, argv, order.env, plain[n], open_log(plain[n]), MARKER) for n, order in orders.items()}
    )
    assert forked == started
    for number, end in enumerate(ENDS):
        ours, theirs = (re.sub(r"0x[0-9a-f]+", "0x", log.read_text()) for log in (orders[number].log, plain[number]))
        if end in ("segv", "abort"):  # faulthandler shows what is below the script, and which modules are there
            ours, theirs = (text.partition("most recent call first")[0] for text in (ours, theirs))
        assert ours == theirs, end


@pytest.mark.parametrize(
    "text", [pytest.param("a b\n", marks=pytest.mark.slow), "x = 'ä'\n".encode("latin-1"),
             pytest.param(None, marks=pytest.mark.slow)]
)  # fmt: skip
def test_a_script_that_cannot_be_run(nursery: Callable[..., Nursery], tmp_path: Path, text: object) -> None:
    script = tmp_path / "script.py"
    script.touch()
    nest = nursery(script)
    if text is None:
        script.unlink()
    else:
        script.write_bytes(text if isinstance(text, bytes) else str(text).encode())
    orders = nest.orders([{}])
    forked = nest.end(nest.warm.fork(orders, MARKER))
    log = tmp_path / "started.log"
    started = nest.end({0: RankProcess(0, environment.rank_argv(nest.spec), nest.env, log, open_log(log), MARKER)})
    assert forked == started
    assert orders[0].log.read_text() == log.read_text()
