"""Every fault in every configuration: a job of MindSpore's stands them all, and ends as undisturbed. See ../matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.adapters.matrix.story import assert_no_step_lost, live_through
from tests.support.framework_results import logs
from tests.support.harness import FtJob
from tests.support.mindspore_jobs import left, left_by, start

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

STYLES = {
    "plain": "graph+longer+own+noise",
    "op by op": "pynative+functional+longer+own+noise",
    "evaluation": "graph+longer+own+noise+fit",
    "workers": "graph+longer+own+workers",  # noise beside functions of Python is told of
    "precision": "graph+longer+own+noise+half",
}
BATCHES = 8  # of an epoch, on each rank
LIMITS = ("--hang-timeout", "5s", "--startup-timeout", "100s", "--grace", "5s", "--max-restarts", "20")


def faults_of(configuration: str, ranks: int) -> list[str]:
    last = ranks - 1
    return [
        f"step {last} 1",
        "step 0 1",
        f"step {last} 2 orphan",
        "epoch_end 0 1",
        f"step {last} {BATCHES + 2} term",
        "begin 0 *",
        *[f"eval {last} 2"] * (configuration == "evaluation"),
        "saving 0 *",
        f"step {last} {3 * BATCHES + 1} stop",
        f"begin {last} *",
        f"step {last} {5 * BATCHES - 2} freeze",
        f"step 0 {5 * BATCHES}",
    ]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("configuration", STYLES)
def test_a_job_stands_all_faults(
    configuration: str,
    ranks: int,
    job: FtJob,
    undisturbed: Callable[[str], object],
    two_undisturbed: Callable[[str], object],
) -> None:
    style, faults = STYLES[configuration], faults_of(configuration, ranks)

    def begin() -> None:
        start(job, f"{style}+slow", "--memory-interval", "1", *LIMITS, ranks=ranks, faults="; ".join(faults))

    live_through(job, begin, faults)
    assert (left(job.out) if ranks == 1 else left_by(2, job.out)) == [undisturbed, two_undisturbed][ranks - 1](style)
    assert_no_step_lost(job, faults)
    for sentence in ("not exact", "not saved"):
        assert sentence not in logs(job), f"a line says {sentence!r} of an exact run"
    job.assert_clean()
