"""Shapes of the zoo with their tensors on the simulated accelerator: killed twice, they go on bit for bit."""

from __future__ import annotations

import json

import pytest

from tests.gpu.test_zoo import check, skip_what_cannot_run
from tests.support.harness import FtJob
from tests.zoo.test_zoo import ALL, disturb, finals, logs, losses, undisturbed

LONG = {"accumulation_clipped", "amp_scaler", "ema_swapped", "frozen_batchnorm", "lbfgs", "replay_buffer"}
"""shapes that `make test-long` runs; the others, which are slow, are run by `make sweep`"""
NAMES = [
    pytest.param(name, marks=pytest.mark.long if name in LONG else pytest.mark.slow)
    for name, shape in ALL.items()
    if shape.promise == "Exact"
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_shape_keeps_its_promise_on_a_late_device(name: str, job: FtJob, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ALL[name]
    monkeypatch.setenv("FT_DEVICE", "sim")
    monkeypatch.setenv("ZOO_DELAYS", json.dumps({"kernel_ms": 1, "copy_ms": 2, "fetch_ms": 5}))
    codes, calm = undisturbed(shape, job.home, FT_DEVICE="sim")
    skip_what_cannot_run(codes, calm, "sim")
    broken = disturb(shape, job)
    assert job.supervisor.returncode == 0, job.stderr + logs(job)
    assert len(list(broken.glob("killed_*"))) == 2, "both kills were made"
    check(shape, job, calm, broken)
    assert (finals(broken), losses(broken)) == (finals(calm), losses(calm))
