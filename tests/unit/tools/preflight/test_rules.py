"""From facts to findings: what is fine, what is odd, what cannot run, and who is the outlier."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from ftlaunch.common import outliers
from ftlaunch.common.outliers import median_of_others
from ftlaunch.tools.preflight import rules
from ftlaunch.tools.preflight.rules import GIB, MIB, Check
from ftlaunch.tools.preflight.view import data, lines, verdict

FACTS: dict[str, Any] = {
    "python": "3.12.1", "executable": "/py", "torch": "2.13.0+cpu", "cuda": None, "devices": [], "driver": None,
    "why": "",
}  # fmt: skip
GPU = {"name": "H100", "free": 79 * GIB, "total": 80 * GIB}
DISK = {"error": "", "bytes": 32 * MIB, "seconds": 0.1, "fsync": 0.002, "free": 100 * GIB}


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ({0: 1.0}, []),
        ({0: 1.0, 1: 1.4}, []),
        ({0: 1.0, 1: 1.6}, [1]),
        ({0: 1.0, 1: 1.1, 2: 0.9, 3: 2.0}, [3]),
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.51, 4: 1.0}, [3]),
        ({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, []),  # they differ, but nobody from the others
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 9.0, 5: 8.0}, [4, 5]),  # two of them do not hide each other
        ({0: 0.2, 1: 1.0, 2: 1.0}, []),  # a fast one is no trouble
    ],
)
def test_outliers(seconds: dict[int, float], slow: list[int]) -> None:
    assert outliers.outliers(seconds) == slow


@pytest.mark.parametrize(
    ("finding", "status", "says"),
    [
        (rules.python(FACTS), "ok", "3.12.1 (/py)"),
        (rules.python({**FACTS, "python": "3.9.1"}), "bad", "3.9.1"),
        (rules.torch(FACTS), "ok", "2.13.0+cpu"),
        (rules.torch({**FACTS, "torch": "2.1.0a0+git123", "cuda": "12.1"}), "warn", "2.1.0a0+git123, CUDA 12.1"),
        (rules.torch({**FACTS, "torch": None, "why": "ImportError: no libcudart"}), "bad", "no libcudart"),
        (rules.devices(FACTS, 2, 0), "ok", "no GPU"),
        (rules.devices(FACTS, 2, 8), "bad", "8 installed, but torch sees none: this torch is built without CUDA"),
        (rules.devices({**FACTS, "cuda": "12.8", "driver": ["old"]}, 2, 1), "bad", "does not start; nvidia-smi: old"),
        (rules.devices({**FACTS, "devices": [GPU, GPU]}, 2, 2), "ok", "2 x H100, 79.0 GiB free at least"),
        (rules.devices({**FACTS, "devices": [GPU]}, 2, 1), "warn", "1 x H100, 79.0 GiB free at least; 2 ranks"),
        (
            rules.devices({**FACTS, "devices": [GPU, {**GPU, "free": GIB}]}, 2, 2),
            "warn",
            "; more than half of the memory is taken on GPU 1",
        ),
        (rules.memory(10 * GIB, 2), "ok", "10.0 GiB free for 2 ranks"),
        (rules.memory(GIB, 2), "warn", "1.0 GiB"),
        (rules.memory(500 * MIB, 2), "bad", "500.0 MiB"),
        (rules.shared_memory(2 * GIB, 1), "ok", "2.0 GiB"),
        (rules.shared_memory(64 * MIB, 1), "warn", "64.0 MiB free"),
        (rules.shared_memory(MIB, 8), "bad", "1.0 MiB"),
        (rules.disk(DISK, "/d"), "ok", "320.0 MiB/s, fsync 2 ms, 100.0 GiB free in /d"),
        (rules.disk({**DISK, "seconds": 3.0}, "/d"), "warn", "10.7 MiB/s"),
        (rules.disk({**DISK, "fsync": 0.5}, "/d"), "warn", "fsync 500 ms"),
        (rules.disk({**DISK, "free": GIB}, "/d"), "warn", "1.0 GiB free"),
        (rules.disk({**DISK, "free": MIB}, "/d"), "bad", "1.0 MiB free"),
        (rules.disk({"error": "read-only file system"}, "/d"), "bad", "cannot write in /d: read-only file system"),
        (rules.port("h", None, ""), "ok", "a free port on h can be bound"),
        (rules.port("h", 80, "Permission denied"), "bad", "h:80 cannot be bound: Permission denied"),
        (rules.clock(2e9, 1e9, True), "ok", "synchronised"),
        (rules.clock(2e9, 1e9, False), "warn", "not synchronised"),
        (rules.clock(2e9, 1e9, None), "skip", "does not say"),
        (rules.clock(1.0, 1e9, True), "warn", "before ftlaunch was installed"),
        (rules.limits(65536, 0, False), "ok", "65536 open files"),
        (rules.limits(512, None, False), "warn", "512"),
        (rules.limits(64, None, False), "bad", "64"),
        (rules.limits(65536, None, True), "ok", "locked memory without limit"),
        (rules.limits(65536, MIB, True), "warn", "locked memory 1.0 MiB"),
    ],
)
def test_findings(finding: Check, status: str, says: str) -> None:
    assert finding.status == status, finding
    assert says in finding.found
    assert bool(finding.advice) == (status in ("warn", "bad")), "what is not fine comes with what to do"


def answers(*products: float, right: bool = True) -> dict[int, dict[str, Any]]:
    told = {"device": "cpu", "all_reduce": 0.01, "right": right}
    return {rank: {**told, "product": seconds} for rank, seconds in enumerate(products)}


def test_the_slow_rank_is_named() -> None:
    product, reduced = rules.ranks(answers(1.0, 1.0, 3.0), {}, 3)
    assert (product.status, reduced.status) == ("warn", "ok")
    assert product.found == "1.0 s on 3 ranks, 1.0 s to 3.0 s; rank 2 (cpu) takes 3.0 s"


def test_a_wrong_sum_and_a_silent_rank_are_bad() -> None:
    (wrong,) = rules.ranks(answers(1.0, right=False), {}, 1)
    assert (wrong.status, wrong.found) == ("bad", "all_reduce gave a wrong sum on rank 0")
    (silent,) = rules.ranks(answers(1.0), {1: "gave no answer"}, 2)
    assert (silent.status, silent.found) == ("bad", "1 of 2 answered: rank 1 gave no answer")


def test_a_line_a_check_and_a_verdict() -> None:
    findings = [Check("python", "ok", "3.12"), Check("disk", "warn", "slow", "wait"), Check("clock", "skip", "?")]
    assert lines(findings, 3.2) == [
        "ok    python  3.12", "warn  disk    slow: wait", "-     clock   ?",
        "the job could run; have a look at: disk (checked in 3.2 s)",
    ]  # fmt: skip
    assert verdict([*findings, Check("port", "bad", "x", "y")]) == "the job could not run: port"
    assert data(findings, 1.0, "j")["could_run"] is True
    assert data(findings, 1.0, "j")["checks"][1] == {
        "name": "disk",
        "status": "warn",
        "found": "slow",
        "advice": "wait",
    }


@pytest.mark.parametrize("seed", range(5))
def test_the_median_of_the_others(seed: int) -> None:
    chance = random.Random(seed)
    for count in range(2, 9):
        values = [float(chance.randint(0, 5)) for _ in range(count)]
        for number, own in enumerate(values):
            others = values[:number] + values[number + 1 :]
            assert median_of_others(own, sorted(values)) == statistics.median(others)
    assert median_of_others(2.0, [2.0]) == 2.0
