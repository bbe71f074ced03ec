"""Shapes of the zoo with their tensors on the simulated accelerator: killed twice, they go on bit for bit."""

from __future__ import annotations

import json

import pytest

from tests.gpu.test_zoo import check
from tests.support.harness import FtJob
from tests.zoo.test_zoo import ALL, disturb, finals, logs, losses, undisturbed

LONG = {
    "amp_scaler",
    "ddp_unused",
    "ema_swapped",
    "fsdp2_drawn_shards",
}
"""shapes that `make test-long` runs; the others, which are slow, are run by `make sweep`"""
_NOT_SIMULATED = "the simulated accelerator lacks an operator"
CANNOT_RUN = {
    "complex_parameters": _NOT_SIMULATED,
    "mapped_weights": "its parameters are given mapped memory of the host",
    "qat": _NOT_SIMULATED,
    "rnn_carried": _NOT_SIMULATED,
    "sparse_adam": _NOT_SIMULATED,
}
"""shapes that have an error on the device before anybody kills them, and why"""
NAMES = [
    pytest.param(name, marks=pytest.mark.long if name in LONG else pytest.mark.slow)
    for name, shape in ALL.items()
    if shape.promise == "Exact" and name not in CANNOT_RUN
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("copies", ["private", pytest.param("overlapped", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_a_shape_keeps_its_promise_on_a_late_device(
    name: str, copies: str, job: FtJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ALL[name]
    if copies == "overlapped":
        monkeypatch.setenv("ZOO_OVERLAPPED", "1")
    monkeypatch.setenv("FT_DEVICE", "sim")
    monkeypatch.setenv("ZOO_DELAYS", json.dumps({"kernel_ms": 1, "copy_ms": 2, "fetch_ms": 5}))
    codes, calm = undisturbed(shape, job.home, FT_DEVICE="sim")
    assert not any(codes), "".join(path.read_text() for path in sorted(calm.glob("said_*")))
    broken = disturb(shape, job)
    assert job.supervisor.returncode == 0, job.stderr + logs(job)
    assert len(list(broken.glob("killed_*"))) == 2, "both kills were made"
    sources = [event["source"] for event in job.events("resumed") if event["attempt"] > 0]
    assert sources == ["memory", "storage"], job.journal_text
    check(shape, job, calm, broken)
    assert (finals(broken), losses(broken)) == (finals(calm), losses(calm))
