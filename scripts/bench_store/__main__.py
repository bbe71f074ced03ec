"""Measures checkpoints in a bucket next to obstore alone: time, memory, requests, and the latency of a commit.

    make bench-store
    python scripts/bench_store --rounds 1 --link-rounds 0       # a quick look

The server is a real one (SeaweedFS), on this machine, and everything lies in memory (--dir), so that no disk is
measured. In each round all that is compared runs in turn, and each round begins with another one. The time of a
checkpoint's upload includes its commit. A slow link lets each connection have --link-mib MiB a second, however many
there are: that is how large providers limit them. Prints medians and ranges as Markdown;
needs 6 GiB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "bench"), str(Path(__file__).parents[2])]

import transfers
from machine import machine
from slow_link import slow_link
from tables import as_table, spread
from tests.support.buckets import BucketServer, FaultyProxy, bucket_server, environment
from transfers import MIB, Shape

SHAPES = (
    Shape(files=2, file_bytes=128 * MIB),
    Shape(files=4, file_bytes=64 * MIB),
    Shape(files=32, file_bytes=8 * MIB),
)
SMALL = Shape(files=4, file_bytes=transfers.HEADER + 1024)
COMMITS = 30

Way = Callable[[str, Path], float]
UPLOADS: dict[str, Way] = {
    "ftlaunch": transfers.publish,
    "obstore, as ftlaunch": transfers.put_same,
    "obstore": transfers.put_defaults,
}
FETCHES: dict[str, Way] = {
    "ftlaunch": transfers.fetch,
    "ftlaunch, verified and on disk": transfers.bring,
    "obstore": transfers.get,
}
Seconds = dict[str, list[float]]  # way -> of each round


@contextmanager
def use_server(home: Path) -> Iterator[BucketServer]:
    """Yield a server, whose port the environment names from now on."""
    with bucket_server(home, volume_mib=4096) as server:  # so that it does not begin volumes while it is measured
        os.environ.update(environment(f"http://127.0.0.1:{server.port}"))
        yield server
    shutil.rmtree(home)


def run_in_turn(ways: Mapping[str, Way], rounds: int, prefix: Callable[[str, int], str], home: Path) -> Seconds:
    """Run each way in each round, every time another one first; return the seconds."""
    names = list(ways)
    seconds: Seconds = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(ways[name](prefix(name, number), home))
    return seconds


def measure_shape(home: Path, shape: Shape, rounds: int) -> tuple[Seconds, Seconds]:
    """Return the seconds of uploads and of fetches of one checkpoint, after a round that is not counted."""
    transfers.make_step(home, shape)
    for way in UPLOADS.values():
        way(f"before/{way.__name__}", home)
    uploads = run_in_turn(UPLOADS, rounds, lambda name, number: f"{UPLOADS[name].__name__}/{number}", home)
    for way in FETCHES.values():
        way("before/publish", home)
    fetches = run_in_turn(FETCHES, rounds, lambda name, number: "before/publish", home)
    return uploads, fetches


def show_transfers(shape: Shape, seconds: Seconds, baselines: Sequence[str]) -> list[list[str]]:
    """Return a row for each way: its seconds, MB/s, and how many times as fast as each baseline it is."""
    rows = []
    for name, values in seconds.items():
        row = [str(shape), name, spread(values, "s", 1)]
        row.append(spread([shape.bytes / 1e6 / value for value in values], "MB/s", 1))
        for baseline in baselines:
            ratios = [alone / value for alone, value in zip(seconds[baseline], values, strict=True)]
            row.append("" if name == baseline else spread(ratios, "", 1))
        rows.append(row)
    return rows


def print_transfers(what: str, found: Mapping[Shape, Seconds], baselines: Sequence[str]) -> None:
    """Print one table of uploads, or of fetches."""
    head = [what, "by", "time", "speed", *(f"times as fast as {name}" for name in baselines)]
    rows = [row for shape, seconds in found.items() for row in show_transfers(shape, seconds, baselines)]
    print("\n" + as_table([head, *rows]), flush=True)


def measure_commits(home: Path) -> str:
    """Return a table of how long small checkpoints take until their indexes are written."""
    transfers.make_step(home, SMALL)
    ways: dict[str, Way] = {"ftlaunch, publish": transfers.publish, "obstore, put": transfers.put_with_index}
    transfers.publish("small/before", home)
    seconds = run_in_turn(ways, COMMITS, lambda name, number: f"small/{ways[name].__name__}/{number}", home)
    rows = [[f"commit of {SMALL}", "time"]]
    rows += [[name, spread(values, "ms", 1000)] for name, values in seconds.items()]
    return as_table(rows)


def count_requests(home: Path, server: BucketServer) -> str:
    """Return a table of the requests that arrive at the server."""
    proxy = FaultyProxy(server)
    os.environ.update(environment(proxy.endpoint))
    rows = [["requests", "", *(kinds := ("PUT", "BEGIN", "PART", "COMPLETE", "GET", "HEAD", "LIST", "DELETE"))]]
    for number, shape in enumerate((SMALL, *SHAPES)):
        prefix = f"requests-{number}"
        place = home / prefix
        place.mkdir()
        transfers.make_step(place, shape)
        before = _requests_of(proxy, lambda prefix=prefix, place=place: transfers.nothing(f"{prefix}/none", place))
        upload = _requests_of(proxy, lambda prefix=prefix, place=place: transfers.publish(prefix, place))
        # both have opened the store first
        rows.append([str(shape), "upload and commit", *(str(upload[kind] - before[kind]) for kind in kinds)])
        fetch = _requests_of(proxy, lambda prefix=prefix, place=place: transfers.fetch(prefix, place))
        fetch["GET"] -= 1  # of the index
        rows.append([str(shape), "fetch", *(str(fetch[kind]) for kind in kinds)])
        shutil.rmtree(place)
    proxy.close()
    os.environ.update(environment(f"http://127.0.0.1:{server.port}"))
    return as_table(rows)


def _requests_of(proxy: FaultyProxy, do: Callable[[], object]) -> dict[str, int]:
    proxy.kinds.clear()
    do()
    return {**dict.fromkeys(("PUT", "BEGIN", "PART", "COMPLETE", "GET", "HEAD", "LIST", "DELETE"), 0), **proxy.kinds}


def measure_memory(home: Path, shape: Shape, rounds: int) -> str:
    """Return a table with a row for each way: the peak of the memory of a process that does nothing else."""
    transfers.make_step(home, shape)
    transfers.publish("memory/stored", home)
    peaks: dict[str, list[float]] = {name: [] for name in transfers.WAYS}
    for number in range(rounds):
        for name in peaks:
            prefix = "memory/stored" if name in ("fetch", "bring", "get") else f"memory/{name}/{number}"
            command = [sys.executable, transfers.__file__, name, prefix, str(home)]
            peaks[name].append(int(subprocess.check_output(command)) / 1024)
    least = statistics.median(peaks["nothing"])
    titles = {"nothing": "nothing"}
    titles |= {way.__name__: f"{name}: upload" for name, way in UPLOADS.items()}
    titles |= {way.__name__: f"{name}: fetch" for name, way in FETCHES.items()}
    rows = [[f"memory for {shape}", "peak", "more than to do nothing"]]
    rows += [
        [titles[name], spread(values, "MiB", 1), f"{statistics.median(values) - least:.0f} MiB"]
        for name, values in peaks.items()
    ]
    return as_table(rows)


def measure_shapes(home: Path, rounds: int, link_mib: int | None) -> None:
    """Measure and print uploads and fetches of all shapes, each with a server of its own.

    Args:
        home: where the files of both sides lie.
        rounds: how many of each.
        link_mib: MiB a second that each connection may have; None: no limit.
    """
    uploads: dict[Shape, Seconds] = {}
    fetches: dict[Shape, Seconds] = {}
    for shape in SHAPES:
        with use_server(home / "server") as server, temporary(home) as place, contextlib.ExitStack() as stack:
            if link_mib is not None:
                port = stack.enter_context(slow_link(server.port, link_mib * MIB))
                os.environ.update(environment(f"http://127.0.0.1:{port}"))
            uploads[shape], fetches[shape] = measure_shape(place, shape, rounds)
    where = "" if link_mib is None else f", {link_mib} MiB/s a connection"
    print_transfers(f"upload and commit{where}", uploads, ["obstore, as ftlaunch", "obstore"])
    print_transfers(f"fetch{where}", fetches, ["obstore"])


def run(args: argparse.Namespace, home: Path) -> None:
    """Measure and print."""
    measure_shapes(home, args.rounds, None)
    if args.link_rounds:
        measure_shapes(home, args.link_rounds, args.link_mib)
    with use_server(home / "server") as server:
        with temporary(home) as place:
            print("\n" + measure_commits(place), flush=True)
        with temporary(home) as place:
            print("\n" + count_requests(place, server), flush=True)
    with use_server(home / "server"), temporary(home) as place:
        print("\n" + measure_memory(place, SHAPES[1], min(args.rounds, 3)))


@contextmanager
def temporary(home: Path) -> Iterator[Path]:
    """Yield an empty folder that is deleted in the end."""
    place = Path(tempfile.mkdtemp(dir=home))
    yield place
    shutil.rmtree(place)


def main() -> None:
    """Measure and print, and delete everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link-rounds", type=int, default=2, help="over the slow link")
    parser.add_argument("--link-mib", type=int, default=10, help="MiB a second of each connection of the slow link")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the files of both sides lie")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ftlaunch-bench-store-", dir=args.dir))
    load = os.getloadavg()[0]
    began = time.monotonic()
    try:
        run(args, home)
    finally:
        shutil.rmtree(home)
    print(f"\n{machine()}; load {load:.1f} before, {os.getloadavg()[0]:.1f} after, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
