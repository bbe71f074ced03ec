"""The shapes of the zoo with their tensors on a GPU: killed twice, they keep the promises that they make on a CPU.

A shape is skipped where it cannot run like that at all (torch's DataLoader cannot be used with a default device), and
where an undisturbed run differs from another one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.harness import FtJob
from tests.zoo.test_zoo import ALL, Shape, disturb, finals, logs, losses, undisturbed

RUN = {name: shape for name, shape in ALL.items() if shape.promise != "Refused"}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", RUN)
def test_a_shape_keeps_its_promise_on_a_gpu(
    name: str, job: FtJob, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    shape = RUN[name]
    monkeypatch.setenv("FT_DEVICE", device)
    codes, calm = undisturbed(shape, job.home, FT_DEVICE=device)
    skip_what_cannot_run(codes, calm, device)
    (other := job.home / "other").mkdir()
    _, second = undisturbed(shape, other, FT_DEVICE=device)
    if (finals(second), losses(second)) != (finals(calm), losses(calm)):
        pytest.skip("an undisturbed run differs from another one")
    broken = disturb(shape, job)
    assert job.supervisor.returncode == 0, job.stderr + logs(job)
    assert len(list(broken.glob("killed_*"))) == 2, "both kills were made"
    check(shape, job, calm, broken)


def skip_what_cannot_run(codes: list[int], calm: Path, device: str) -> None:
    said = "".join(path.read_text() for path in sorted(calm.glob("said_*")))
    if any(codes):
        pytest.skip(f"it does not run with its tensors there: {said.splitlines()[-1][:200]}")
    if device == "cuda" and not any(int(path.read_text()) for path in calm.glob("allocated_*")):
        pytest.skip("nothing of it is on the GPU")


def check(shape: Shape, job: FtJob, calm: Path, broken: Path) -> None:
    if shape.promise == "Said":
        assert logs(job).count(shape.words) >= 1, logs(job)
        return
    assert "is not saved" not in logs(job), "a line speaks of an exact run as of one that is not"
    assert job.events("resume_differs") == [], f"{job.events('resume_differs')}\n{job.stderr}\n{logs(job)}"
    assert finals(broken) == finals(calm), f"{job.stderr}\n{logs(job)}"
    assert losses(broken) == losses(calm), f"{job.stderr}\n{logs(job)}"
