"""A rank without torch that beats as one with hooks does, of an awkward shape, and healthy unless its name says else.

healthy.py OUT SHAPE: `<out>/fired` says that the shape came about. Shapes that begin with "hung" hang in attempt 0.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ftlaunch_contract.pages.page import open_pages
from ftlaunch_contract.protocol import Flag, Phase
from ftlaunch_hooks.process.bootstrap import own_page

out, shape = Path(sys.argv[1]), sys.argv[2]
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["FTLAUNCH_ATTEMPT"])
out.mkdir(parents=True, exist_ok=True)
page = None if shape == "child_works" else own_page()
peers = []


def fired() -> None:
    with (out / "fired").open("a") as file:
        file.write(f"{shape} {RANK} {ATTEMPT}\n")


def attach() -> None:
    peers.extend(open_pages(page.path.parent, int(os.environ["WORLD_SIZE"])))
    page.set_resumed(*page.resume)
    page.beat(0, time.monotonic_ns())
    page.raise_flag(Flag.ATTACHED)
    page.phase = Phase.TRAIN


def step(seconds: float = 0.02, count: int = 1) -> None:
    """As collectives would have it: all ranks end it together."""
    for _ in range(count):
        time.sleep(seconds)
        made = page.step + 1
        page.beat(made, time.monotonic_ns())
        while any(peer.attempt != page.attempt or peer.step < made for peer in peers):
            time.sleep(0.001)


def stays(phase: Phase, seconds: float) -> None:
    page.phase = phase
    time.sleep(seconds)
    page.phase = Phase.TRAIN


def leave() -> None:
    page.phase = Phase.TEARDOWN
    page.raise_flag(Flag.LOOP_LEFT)


def says(line: str) -> None:
    print(line, flush=True)


def hangs_once() -> None:
    if ATTEMPT == 0:
        fired()
        time.sleep(1000)


def burn(seconds: float) -> str:
    return f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\n"


def evaluates() -> None:
    step(count=20)
    fired()
    stays(Phase.EVAL, 3.0)
    step(count=5)


def evaluates_often() -> None:
    for _ in range(4):
        step(count=5)
        fired()
        stays(Phase.EVAL, 0.7)


def rank_0_saves() -> None:
    step(count=20)
    if RANK == 0:
        fired()
        stays(Phase.CHECKPOINT, 3.0)
    step(count=5)


def is_stopped() -> None:
    step(count=20)
    if RANK == 1:
        fired()
        waker = f"import os, signal, time\ntime.sleep(1)\nos.kill({os.getpid()}, signal.SIGCONT)\n"
        child = subprocess.Popen([sys.executable, "-c", waker])
        os.kill(os.getpid(), signal.SIGSTOP)
        child.wait()
    step(count=5)


def one_says_all() -> None:
    """The other says nothing; and the clock of its log's times jumps back an hour again and again."""
    for number in range(60):
        step(0.05)
        if RANK == 1:
            says(f"step {number}")
            os.utime(sys.stdout.fileno(), (time.time() - 3600, time.time() - 3600))
    fired()


def says_nothing() -> None:
    step(0.05, 60)
    fired()


def tears_down() -> None:
    step(count=20)
    leave()
    if RANK == 0:
        for number in range(30):
            (out / f"final_{number}").write_bytes(bytes(1 << 16))
            time.sleep(0.1)
        fired()


def child_works() -> None:
    fired()
    subprocess.run([sys.executable, "-c", burn(5.0)], check=True)


def hung_at_the_end() -> None:
    step(count=20)
    leave()
    if RANK == 0:
        hangs_once()


def hung_in_teardown() -> None:
    step(count=20)
    leave()
    hangs_once()


def hung_in_evaluation() -> None:
    step(count=20)
    page.phase = Phase.EVAL
    if RANK == 1:
        hangs_once()
    page.phase = Phase.TRAIN
    step(count=5)


def hung_without_a_word() -> None:
    """It makes steps all the time."""
    fired()
    for number in range(500 if ATTEMPT == 0 else 5):
        step()
        if ATTEMPT:
            says(f"step {number}")


def hung_and_idle() -> None:
    step(count=20)
    hangs_once()


signal.alarm(60)
if page is not None:
    attach()
globals()[shape]()
if page is not None:
    leave()
