"""The ways to bring a checkpoint to a bucket and back: ftlaunch's, and obstore's alone. Each returns its seconds.

As a program this file carries out one way in a process of its own, and prints the most memory that the process has had:

    python transfers.py WAY PREFIX HOME
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.store import S3Store

sys.path.append(str(Path(__file__).parents[2]))

from tests.support.buckets import BUCKET
from tests.support.checkpoints import common, image

from ftlaunch.checkpoints.stores.fetching import fetch_files
from ftlaunch.checkpoints.stores.index import StoredStep
from ftlaunch.checkpoints.stores.store import SMALL_FILE, open_store
from ftlaunch.checkpoints.stores.stored_catalog import StoreCatalog
from ftlaunch.checkpoints.stores.stored_checkpoints import StoredCheckpoints
from ftlaunch_contract.checkpoint import layout, verify, writer
from ftlaunch_contract.checkpoint.tensor_file import whole_chunk

MIB = 1 << 20
STEP = 1
HEADER = 4096  # bytes of a file that are left for its header
THREADS = 4  # large files under way at the same time, as with ftlaunch
SMALL_FILES = 16  # files of one request under way at the same time, as with ftlaunch
SAME_PARTS = {"chunk_size": 8 * MIB, "max_concurrency": 8}  # as with ftlaunch
"""what `obstore.put` is told so that it sends what ftlaunch sends"""


@dataclass(frozen=True)
class Shape:
    """The files of a checkpoint."""

    files: int
    """an even number: two for each rank"""
    file_bytes: int
    """nearly, and no more"""

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return self.files * self.file_bytes

    def __str__(self) -> str:
        size = f"{self.file_bytes // MIB} MiB" if self.file_bytes >= MIB else f"{self.file_bytes} bytes"
        return f"{self.files} files of {size}"


def make_step(home: Path, shape: Shape) -> None:
    """Commit a checkpoint of random bytes, which nobody can compress, in `home`/checkpoints."""
    target = writer.SaveTarget(
        checkpoint_dir=home / "checkpoints",
        step=STEP,
        why="interval",
        prefix="net",
        world_size=shape.files // 2,
    )
    writer.prepare(target)
    size = shape.file_bytes - HEADER
    for rank in range(shape.files // 2):
        slots = {
            group: image(home / group, {whole_chunk(f"{group}{rank}", "U8", (size,)): os.urandom(size)})
            for group in layout.GROUPS
        }
        writer.write_shard(target, rank, slots, common(STEP))
        for group, fd in slots.items():
            os.close(fd)
            (home / group).unlink()
    writer.commit(target)


def _claimed(prefix: str, directory: Path) -> StoredCheckpoints:
    """Return the store below a prefix, taken over."""
    stored = StoredCheckpoints(open_store(f"s3://{BUCKET}/{prefix}"), directory, job="bench", owner="the benchmark")
    stored.claim()
    return stored


def _seconds(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began


# --- to the bucket ------------------------------------------------------------------------------------------------


def publish(prefix: str, home: Path) -> float:
    """Upload and commit the step by ftlaunch."""
    stored = _claimed(prefix, home / "checkpoints")
    return _seconds(lambda: stored.publish(keep=1))


def put_same(prefix: str, home: Path) -> float:
    """Upload the step's files by obstore, with ftlaunch's concurrency."""
    return _put(prefix, home, SMALL_FILES, **SAME_PARTS)


def put_defaults(prefix: str, home: Path) -> float:
    """Upload the step's files by obstore, with its own defaults for each file."""
    return _put(prefix, home)


def put_with_index(prefix: str, home: Path) -> float:
    """Upload the step's files by obstore, and one small object after them: as many requests as a commit has."""
    store = S3Store(BUCKET, prefix=prefix)
    return _put(prefix, home) + _seconds(lambda: obstore.put(store, "index", bytes(1024)))


def _put(prefix: str, home: Path, small_files: int = THREADS, **options: int) -> float:
    store = S3Store(BUCKET, prefix=prefix)
    step = layout.iteration_dir(home / "checkpoints", STEP)
    names = [*verify.examine(step)["files"], layout.METADATA]
    is_small = max((step / name).stat().st_size for name in names) <= SMALL_FILE

    def put_all() -> None:
        with ThreadPoolExecutor(small_files if is_small else THREADS) as pool:
            list(pool.map(lambda name: obstore.put(store, name, step / name, **options), names))

    return _seconds(put_all)


# --- back ---------------------------------------------------------------------------------------------------------


def fetch(prefix: str, home: Path) -> float:
    """Write the step's files by ftlaunch, without the checks of `bring`."""
    stored = _stored_step(prefix)
    with _Target(home) as target:
        store = open_store(f"s3://{BUCKET}/{prefix}")
        return _seconds(lambda: fetch_files(store, stored, target))


def bring(prefix: str, home: Path) -> float:
    """Bring the step as the start of a job does: write its files, verify every byte, have them on disk."""
    with _Target(home) as target:
        stored = _claimed(prefix, target)
        seconds = _seconds(lambda: stored.bring(newer_than=-1))
        if not layout.list_iterations(target):
            raise RuntimeError("the step was not brought")
        return seconds


def get(prefix: str, home: Path) -> float:
    """Write the step's files by obstore, one request for each."""
    store = S3Store(BUCKET, prefix=prefix)
    files = _stored_step(prefix).files
    with _Target(home) as target:

        def get_file(name: str) -> None:
            with (target / name).open("wb") as file:
                for piece in obstore.get(store, files[name].object):
                    file.write(piece)

        def get_all() -> None:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(get_file, files))

        return _seconds(get_all)


def _stored_step(prefix: str) -> StoredStep:
    return StoreCatalog(open_store(f"s3://{BUCKET}/{prefix}")).index.steps[STEP]


class _Target:
    """An empty folder beside `home`, on the same storage, that is deleted in the end."""

    def __init__(self, home: Path) -> None:
        self._path = home.with_name(f"{home.name}-fetched")

    def __enter__(self) -> Path:
        self._path.mkdir()
        return self._path

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._path)


# --- alone in a process -------------------------------------------------------------------------------------------


def nothing(prefix: str, home: Path) -> float:
    """Take the store over, and do nothing more: what a process takes anyway."""
    _claimed(prefix, home / "checkpoints")
    return 0.0


WAYS = {way.__name__: way for way in (nothing, publish, put_same, put_defaults, fetch, bring, get)}


def main() -> None:
    """Carry out a way, and print the peak of this process's resident memory in KiB."""
    way, prefix, home = sys.argv[1:]
    WAYS[way](prefix, Path(home))
    status = Path("/proc/self/status").read_text()
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


if __name__ == "__main__":
    main()
