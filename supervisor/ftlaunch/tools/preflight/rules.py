"""Judges measurements: whether the job can run, and what a person should do otherwise. Pure.

Status `bad` means that the job could not run, `warn` that the job runs but somebody should look, `skip` that there was
no judgement. Each rule returns a `Check` of a report. checks.py measures and calls the rules for `ftctl check`;
quick.py does also for an agent before its node joins a job.

Some rules judge the JSON object with which another process has answered. Each key is there unless said otherwise:

- The probe of the interpreter, `facts` in `python`, `torch` and `devices`: `python` (version), `executable` (path),
  `driver` (lines of nvidia-smi; None if there is no such program), `torch` (version; None if torch cannot be imported)
  and `why` (reason for missing facts, or ""). Only with torch: `cuda` (version; None for a build without CUDA) and
  `devices` (for each GPU its `name`, and its `free` and `total` memory in bytes).
- The measurement of the disk, `facts` in `disk` and `locks`: `error` (why there is no measurement, or ""). Only without
  an error: `bytes` and `seconds` of one large write with its fsync, `fsync` (seconds of a small fsync), `free` (bytes),
  and `locks` (by directory why files there cannot be locked, or "").
- The probe of each rank, `answers` in `ranks`: `device` ("cuda" or "cpu"), `product` and `all_reduce` (seconds of a
  matrix product and of an all_reduce), and `right` (whether every sum was right).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ftlaunch.common.formatting import duration, size
from ftlaunch.common.outliers import outliers

Status = Literal["ok", "warn", "bad", "skip"]

MIB = 1 << 20
GIB = 1 << 30
SHM = "/dev/shm"  # noqa: S108 - the name of a check
OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 10)


@dataclass(frozen=True)
class Check:
    """A row of the report: what was found, and what to do unless the status is ok."""

    name: str
    status: Status
    found: str
    advice: str = ""


def could_run(checks: Sequence[Check]) -> bool:
    """Return whether no check is bad, so that the job could run."""
    return all(check.status != "bad" for check in checks)


def python(facts: Mapping[str, Any]) -> Check:
    """Judge the version of the job's interpreter. facts: the answer of the interpreter's probe."""
    found = f"{facts['python']} ({facts['executable']})"
    if _version(facts["python"]) < OLDEST_PYTHON:
        return Check("python", "bad", found, f"use Python {_dotted(OLDEST_PYTHON)} or newer")
    return Check("python", "ok", found)


def torch(facts: Mapping[str, Any]) -> Check:
    """Judge the version of torch. facts: the answer of the interpreter's probe."""
    if facts["torch"] is None:
        return Check("torch", "bad", f"cannot be imported: {facts['why']}", "install torch for the job's Python")
    build = f", CUDA {facts['cuda']}" if facts["cuda"] else ""
    if _version(facts["torch"]) < OLDEST_TORCH:
        advice = f"the hooks are made for torch {_dotted(OLDEST_TORCH)} and newer"
        return Check("torch", "warn", facts["torch"] + build, advice)
    return Check("torch", "ok", facts["torch"] + build)


def devices(facts: Mapping[str, Any], nproc: int, installed: int) -> Check:
    """Judge the GPUs that torch sees.

    Args:
        facts: the answer of the interpreter's probe.
        nproc: number of ranks.
        installed: number of GPUs that are installed and visible.
    """
    seen = facts.get("devices", [])
    driver = facts["driver"] or []
    if not seen and installed:
        why = facts["why"] or ("this torch is built without CUDA" if not facts.get("cuda") else "CUDA does not start")
        driver_error = f"; nvidia-smi: {driver[0]}" if driver else ""
        return Check("devices", "bad", f"{installed} installed, but torch sees none: {why}{driver_error}",
                       "install a torch for this driver, or run with CUDA_VISIBLE_DEVICES= on the CPU")  # fmt: skip
    if not seen:
        return Check("devices", "ok", "no GPU: the ranks run on the CPU")
    names = ", ".join(sorted({device["name"] for device in seen}))
    least = min(device["free"] for device in seen)
    found = f"{len(seen)} x {names}, {size(least)} free at least"
    if nproc > len(seen):
        return Check("devices", "warn", f"{found}; {nproc} ranks", f"share or run {len(seen)} ranks")
    busy = [number for number, device in enumerate(seen) if device["free"] < device["total"] / 2]
    if busy:
        in_use = f"more than half of the memory is taken on GPU {_listed(busy)}"
        return Check("devices", "warn", f"{found}; {in_use}", "see who: nvidia-smi")
    return Check("devices", "ok", found)


def memory(free: int, nproc: int) -> Check:
    """Judge the machine's free memory. A rank that only imports torch takes some 300 MiB.

    Args:
        free: bytes.
        nproc: number of ranks.
    """
    found = f"{size(free)} free for {_ranks(nproc)}"
    if free < nproc * 300 * MIB:
        return Check("memory", "bad", found, "free some, or start fewer ranks: each wants 300 MiB for torch alone")
    if free < nproc * GIB:
        return Check("memory", "warn", found, "less than 1 GiB a rank: it may be killed for lack of memory")
    return Check("memory", "ok", found)


def shared_memory(free: int, nproc: int) -> Check:
    """Judge the free room in /dev/shm. Snapshots take three times the job's state; with less room there are fewer.

    Args:
        free: bytes.
        nproc: number of ranks.
    """
    found = f"{size(free)} free"
    if free < nproc * MIB:
        return Check(SHM, "bad", found, "make room: every rank has a page there")
    if free < GIB:
        advice = "enlarge it (docker: --shm-size): snapshots want three times the state, else there are fewer or none"
        return Check(SHM, "warn", found, advice)
    return Check(SHM, "ok", found)


def disk(facts: Mapping[str, Any], folder: str) -> Check:
    """Judge speed and free space of the checkpoint directory.

    Args:
        facts: the measurement of the disk; `disk.ask` returns all but `free`.
        folder: the directory that was measured, for the report.
    """
    if facts["error"]:
        return Check("disk", "bad", f"cannot write in {folder}: {facts['error']}", "give another --checkpoint-dir")
    rate = facts["bytes"] / max(facts["seconds"], 1e-9)
    found = f"{size(rate)}/s, fsync {duration(facts['fsync'])}, {size(facts['free'])} free in {folder}"
    if facts["free"] < 100 * MIB:
        return Check("disk", "bad", found, "make room: a checkpoint must fit in besides the one before")
    if facts["free"] < 10 * GIB:
        return Check("disk", "warn", found, "less than 10 GiB: is there room for two checkpoints at least?")
    if rate < 50 * MIB or facts["fsync"] > 0.2:
        return Check("disk", "warn", found, "slow: saving runs beside the training, a stop has to wait for it")
    return Check("disk", "ok", found)


def locks(facts: Mapping[str, Any]) -> Check:
    """Judge whether run dir and checkpoint directory can be locked. facts: the answer of `disk.ask`."""
    if facts["error"]:
        return Check("locks", "skip", "not checked, because the disk check failed")
    lacking = {folder: why for folder, why in facts["locks"].items() if why}
    if not lacking:
        return Check("locks", "ok", "flock works")
    without_locks = ", ".join(f"{folder} ({why})" for folder, why in lacking.items())
    advice = "only your own jobs on this machine are kept out: never work there from two machines at a time"
    return Check("locks", "warn", f"none in {without_locks}", advice)


def ranks(answers: Mapping[int, Mapping[str, Any]], failures: Mapping[int, str], nproc: int) -> list[Check]:
    """Judge the matrix product and the all_reduce of every rank.

    Args:
        answers: by rank the answer of its probe.
        failures: by rank why there is no answer.
        nproc: number of ranks.

    Returns:
        One bad check if ranks gave no answer or wrong sums; otherwise the checks of the product and the all_reduce.
    """
    if failures:
        reasons = "; ".join(f"rank {rank} {what}" for rank, what in sorted(failures.items()))
        return [
            Check("ranks", "bad", f"{len(answers)} of {nproc} answered: {reasons}", "its last words stand in brackets")
        ]
    wrong = [rank for rank, answer in answers.items() if not answer["right"]]
    if wrong:
        found = f"all_reduce gave a wrong sum on rank {_listed(wrong)}"
        return [Check("ranks", "bad", found, "suspect memory, network or the build of torch")]
    return [_compared("matmul", "product", answers), _compared("all_reduce", "all_reduce", answers)]


def _compared(name: str, field: str, answers: Mapping[int, Mapping[str, Any]]) -> Check:
    """Compare the seconds in `field` of all ranks, and warn about outliers."""
    from statistics import median  # noqa: PLC0415 - slow to load, and each agent loads this module

    seconds = {rank: float(answer[field]) for rank, answer in answers.items()}
    found = f"{duration(median(seconds.values()))} on {_ranks(len(seconds))}"
    if len(seconds) > 1:
        found += f", {duration(min(seconds.values()))} to {duration(max(seconds.values()))}"
    slow = outliers(seconds)
    if not slow:
        return Check(name, "ok", found)
    each = ", ".join(f"rank {rank} ({answers[rank]['device']}) takes {duration(seconds[rank])}" for rank in slow)
    advice = "all wait for the slowest at every step: look at its device, its heat, and who else uses it"
    return Check(name, "warn", f"{found}; {each}", advice)


def port(address: str, number: int | None, error: str) -> Check:
    """Judge whether rank 0 could listen where the ranks meet. error: why not; empty if it could."""
    where = f"{address}:{number}" if number else f"a free port on {address}"
    if error:
        advice = "leave out --master-port" if number else "give an address of this machine as --master-addr"
        return Check("port", "bad", f"{where} cannot be bound: {error}", advice)
    return Check("port", "ok", f"{where} can be bound")


def clock(now: float, installed_at: float, synchronised: bool | None) -> Check:
    """Judge the wall clock, which only people read; decisions use the monotonic clock.

    Args:
        now: seconds since the epoch.
        installed_at: time of the installation in seconds since the epoch, before which no right clock can be.
        synchronised: whether the kernel's clock is synchronised; None if unknown.
    """
    if now < installed_at:
        return Check("clock", "warn", "it shows a time before ftlaunch was installed", "set it: logs will mislead")
    if synchronised is None:
        return Check("clock", "skip", "the kernel does not say whether it is synchronised")
    if not synchronised:
        return Check("clock", "warn", "it is not synchronised", "run an NTP client, to compare logs between machines")
    return Check("clock", "ok", "synchronised")


def limits(nofile: int, memlock: int | None, uses_gpus: bool) -> Check:
    """Judge the limits of the launching process, which the ranks inherit.

    Args:
        nofile: number of open files.
        memlock: bytes of locked memory, which matters only with GPUs; None for no limit.
        uses_gpus: whether the job uses GPUs.
    """
    found = f"{nofile} open files"
    if uses_gpus:
        found += ", locked memory " + ("without limit" if memlock is None else size(memlock))
    if nofile < 256:
        return Check("limits", "bad", found, "ulimit -n 65536")
    if nofile < 1024:
        return Check("limits", "warn", found, "DataLoader workers want more: ulimit -n 65536")
    if uses_gpus and memlock is not None and memlock < 64 * MIB:
        return Check("limits", "warn", found, "RDMA wants locked memory: ulimit -l unlimited")
    return Check("limits", "ok", found)


def _version(text: str) -> tuple[int, ...]:
    """Return major and minor number of a version: (2, 13) for `2.13.0+cpu`."""
    return tuple(int(part) for part in text.partition("+")[0].split(".")[:2] if part.isdigit())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
