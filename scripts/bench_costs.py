"""Measures what the supervisor and the hooks cost on this machine.

    make bench-costs

Each figure is given with median and range over several rounds: the supervisor's resident memory and processor time
with eight idle ranks, the time from the death of a rank to the loop's reaction, the cost of a beat, the cost for a
script that is observed without calling the hooks, the cost of a step's fingerprint, and a snapshot of 1 GiB against a
plain copy of the same bytes, interleaved. Prints a table; `--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from ftlaunch.history.journal import read_events

IDLE = "import time\ntime.sleep(1000)\n"
DYING = """
import os, signal, time
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
time.sleep(0.3)
if attempt < {deaths}:
    with open("deaths", "a") as file:
        file.write(f"{{time.monotonic()}}\\n")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def figure(values: list[float], unit: str, limit: str) -> dict[str, Any]:
    """Return the median and the range of some measurements."""
    return {
        "median": statistics.median(values), "low": min(values), "high": max(values), "n": len(values),
        "unit": unit, "limit": limit,
    }  # fmt: skip


@contextmanager
def supervisor(home: Path, script: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ftlaunch on a script in a directory of its own for the time of the context."""
    (home / "job.py").write_text(script)
    command = [
        sys.executable,
        "-m",
        "ftlaunch",
        "--run-dir",
        "run",
        "--job-id",
        f"bench-{os.getpid()}",
        *options,
    ]
    process = subprocess.Popen([*command, "job.py"], cwd=home, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def idle_cost(home: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure resident memory (MiB) and processor time (% of a core) of a supervisor with eight idle ranks."""
    memory = []
    saver = []
    cpu = []
    with supervisor(home, IDLE, "--nproc-per-node", "8") as process:
        me = psutil.Process(process.pid)
        while len(me.children()) < 9:
            time.sleep(0.05)
        time.sleep(2.0)
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
        helper = next(p for p in me.children() if "ftlaunch.checkpoints.saver" in " ".join(p.cmdline()))
        for _ in range(rounds):
            before = me.cpu_times()
            began = time.monotonic()
            time.sleep(seconds)
            after = me.cpu_times()
            ended = time.monotonic()
            cpu.append(100 * (after.user + after.system - before.user - before.system) / (ended - began))
            memory.append(me.memory_info().rss / 2**20)
            saver.append(helper.memory_info().rss / 2**20)
    return {
        "supervisor, resident, 8 idle ranks": figure(memory, "MiB", "<= 30"),
        "saver, resident": figure(saver, "MiB", ""),
        "supervisor, CPU, 8 idle ranks": figure(cpu, "% of a core", "<= 1"),
    }


def reaction(home: Path, deaths: int) -> dict[str, Any]:
    """Measure the milliseconds from a rank's last act to the first event of its death."""
    with supervisor(
        home,
        DYING.format(deaths=deaths),
        "--max-restarts",
        str(deaths),
        "--backoff-first",
        "1ms",
        "--backoff-max",
        "1ms",
    ) as process:
        process.wait()
    times = [float(line) for line in (home / "deaths").read_text().split()]
    words = [e["mono"] for e in read_events(home / "run") if e["event"] in ("rank_dying", "rank_exited")]
    values = [(min(word for word in words if word >= at) - at) * 1000 for at in times]
    return {"death of a rank to reaction": figure(values, "ms", "<= 20")}


def beat_cost(home: Path, rounds: int) -> dict[str, Any]:
    """Measure the microseconds of one beat, with reading the clock."""
    from ftlaunch_contract.pages.page import Page, create_page

    create_page(home / "page_00000")
    page = Page(home / "page_00000")
    clock = time.monotonic_ns
    count = 200_000
    values = [timeit.timeit(lambda: page.beat(1, clock()), number=count) / count * 1e6 for _ in range(rounds)]
    page.close()
    return {"beat": figure(values, "us", "<= 1")}


def observed_cost(home: Path, rounds: int) -> dict[str, Any]:
    """Measure a training step of about a millisecond, with and without the observer of scripts without hooks."""
    import torch

    from ftlaunch_contract.pages.page import Page, create_page
    from ftlaunch_hooks.observe.optimizer_steps import Observer

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 128)
    create_page(home / "page_00002")
    page = Page(home / "page_00002")

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def block() -> float:
        return timeit.timeit(step, number=300) / 300 * 1000

    block()
    bare = []
    observed = []
    for _ in range(3 * rounds):
        bare.append(block())
        page.begin(0, os.getpid(), 0)
        observer = Observer(page)
        step()  # the observer looks for a parameter in its first step
        observed.append(block())
        observer.close()
    page.close()
    ratios = [a / b for a, b in zip(observed, bare, strict=True)]
    noise = [a / b for a, b in zip(bare[1:], bare, strict=False)]
    return {
        "a small training step": figure(bare, "ms", ""),
        "the same, observed": figure(observed, "ms", ""),
        "observed / not": figure(ratios, "x", "~ 1"),
        "not / not, the noise": figure(noise, "x", ""),
    }


def fingerprint_cost(home: Path, rounds: int) -> dict[str, Any]:
    """Measure training steps of about 2 and about 10 ms, with and without their fingerprints, in turn."""
    found: dict[str, Any] = {}
    for label, layers, width, wanted in (("2 ms", 8, 160, "<= 1.05"), ("10 ms", 14, 384, "<= 1.01")):
        found |= _fingerprint_cost(home, rounds, label=label, layers=layers, width=width, wanted=wanted)
    return found


def _fingerprint_cost(
    home: Path, rounds: int, *, label: str, layers: int, width: int, wanted: str
) -> dict[str, Any]:  # fmt: skip
    import torch

    from ftlaunch_contract.pages.page import Page, create_page
    from ftlaunch_contract.protocol import Resume
    from ftlaunch_hooks.observe.proof.step_proof import StepProof

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, width)
    directory = home / f"fingerprints {label}"
    directory.mkdir()
    create_page(directory / "page_00000")
    page = Page(directory / "page_00000")
    page.begin(0, os.getpid(), 0)
    made = 0

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def block(proof: StepProof | None) -> float:
        nonlocal made
        began = time.perf_counter()
        for _ in range(100):
            step()
            made += 1
            if proof is not None:
                proof.end_step(made)
        return (time.perf_counter() - began) * 10.0

    block(None)
    bare: list[float] = []
    noted: list[float] = []
    for _ in range(3 * rounds):
        bare.append(block(None))
        proof = StepProof(
            {"model": model, "optimizer": optimizer},
            page=page, directory=directory, rank=0, on_end=lambda step, name: None,
        )  # fmt: skip
        proof.begin(made, Resume.FRESH, directory / "copy", is_comparable=False)
        noted.append(block(proof))
        proof.close()
    page.close()
    ratios = [a / b for a, b in zip(noted, bare, strict=True)]
    return {
        f"a step of {label}": figure(bare, "ms", ""),
        f"a step of {label}, with its fingerprint / without": figure(ratios, "x", wanted),
    }


def snapshot_cost(home: Path, rounds: int) -> dict[str, Any]:
    """Measure a snapshot of 1 GiB in 64 tensors against a copy of the same bytes to other memory, interleaved."""
    import torch

    from ftlaunch_contract.pages.page import Page, create_page
    from ftlaunch_contract.protocol import Flag
    from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
    from ftlaunch_hooks.state.state import RankState

    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(4 << 20)) for _ in range(64))
    other = [torch.empty_like(parameter) for parameter in model]
    create_page(home / "page_00001")
    page = Page(home / "page_00001")
    page.begin(0, os.getpid(), 0)
    page.raise_flag(Flag.ATTACHED)
    snapshots = Snapshotter(
        state=RankState({"model": model}, (), rank=0, world_size=1),
        page=page,
        peers=[page],
        directory=home,
        rank=0,
        versions={},
    )
    ours: list[float] = []
    plain: list[float] = []
    first = 0.0
    with torch.no_grad():
        for step in range(rounds + 3):
            began = time.perf_counter()
            for source, target in zip(model, other, strict=True):
                target.copy_(source)
            middle = time.perf_counter()
            snapshots.capture(step)
            ended = time.perf_counter()
            if step == 0:
                first = ended - middle
            if step >= 3:  # the first snapshot into each slot lays the slot out
                plain.append((middle - began) * 1000)
                ours.append((ended - middle) * 1000)
    snapshots.close()
    page.close()
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    return {
        "copy of 1 GiB": figure(plain, "ms", ""),
        "snapshot of 1 GiB": figure(ours, "ms", ""),
        "snapshot / copy": figure(ratios, "x", "<= 1.5"),
        "first snapshot of a slot (laid out)": figure([first * 1000], "ms", ""),
    }


def first_snapshot_cost(home: Path, rounds: int, mebibytes: int) -> dict[str, Any]:
    """Measure the first snapshots of two slots against a copy of the same bytes, prepared in time and not, in turn."""
    import torch

    from ftlaunch_contract.pages.page import Page, create_page
    from ftlaunch_contract.pages.words import PREPARING
    from ftlaunch_contract.protocol import Flag
    from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
    from ftlaunch_hooks.state.state import RankState

    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(mebibytes << 12)) for _ in range(64))
    other = [torch.ones_like(parameter) for parameter in model]
    plain: list[float] = []
    first: dict[bool, list[float]] = {True: [], False: []}
    ratios: dict[bool, list[float]] = {True: [], False: []}
    preparing: list[float] = []
    for number in range(2 * rounds):
        is_prepared = number % 2 == 0
        directory = home / f"first_{mebibytes}_{number}"
        directory.mkdir()
        create_page(directory / "page_00000")
        page = Page(directory / "page_00000")
        page.begin(0, os.getpid(), 0)
        page.raise_flag(Flag.ATTACHED)
        snapshots = Snapshotter(
            state=RankState({"model": model}, (), rank=0, world_size=1),
            page=page,
            peers=[page],
            directory=directory,
            rank=0,
            versions={},
        )
        snapshots.prepares_slots = is_prepared
        began = time.perf_counter()
        snapshots.fit(0)
        for step in range(2):
            while page.q[PREPARING]:
                time.sleep(0.001)
            preparing += [time.perf_counter() - began] if is_prepared else []
            began = time.perf_counter()
            with torch.no_grad():
                for source, target in zip(model, other, strict=True):
                    target.copy_(source)
            middle = time.perf_counter()
            snapshots.capture(step)
            ended = time.perf_counter()
            plain.append((middle - began) * 1000)
            first[is_prepared].append((ended - middle) * 1000)
            ratios[is_prepared].append((ended - middle) / (middle - began))
            began = time.perf_counter()
        snapshots.close()
        page.close()
        shutil.rmtree(directory)
    size = f"{mebibytes} MiB"
    return {
        f"copy of {size}": figure(plain, "ms", ""),
        f"first snapshot of {size} in a slot, laid out in the way": figure(first[False], "ms", ""),
        f"first snapshot of {size} in a slot, prepared": figure(first[True], "ms", ""),
        f"{size}, laid out in the way / copy": figure(ratios[False], "x", ""),
        f"{size}, prepared / copy": figure(ratios[True], "x", "<= 1.2"),
        f"preparing a slot of {size} in its thread": figure([seconds * 1000 for seconds in preparing], "ms", ""),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-"))
    memory = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-", dir="/dev/shm"))
    try:
        for name in ("idle", "deaths"):
            (home / name).mkdir()
        figures |= idle_cost(home / "idle", args.rounds, 5.0)
        figures |= reaction(home / "deaths", 20)
        figures |= beat_cost(memory, args.rounds)
        figures |= observed_cost(memory, args.rounds)
        figures |= fingerprint_cost(memory, args.rounds)
        figures |= snapshot_cost(memory, args.rounds)
        for mebibytes in (256, 1024):
            figures |= first_snapshot_cost(memory, args.rounds, mebibytes)
    finally:
        shutil.rmtree(home)
        shutil.rmtree(memory)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}"
    print(f"{machine}, {time.strftime('%Y-%m-%d')}\n")
    print("| what | median | range | n | wanted |\n| --- | --- | --- | --- | --- |")
    for name, entry in figures.items():
        spread = f"{entry['low']:.3g} to {entry['high']:.3g}"
        print(f"| {name} | {entry['median']:.3g} {entry['unit']} | {spread} | {entry['n']} | {entry['limit']} |")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
