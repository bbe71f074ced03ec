"""Every fault in every configuration of every framework: a job stands them all, and ends as undisturbed.

A rank is killed, and once more in the same step; its supervisor is killed; a rank is killed at the end of an epoch, in
an evaluation and in the framework's own save; SIGTERM comes to a rank, and to the job, and the job that goes on from
storage is killed in its first step; a rank is frozen; the last step is cut off. These are faults of one job, so each
also meets a job that has been resumed before.
"""

from __future__ import annotations

import itertools

import pytest
from tests.adapters.matrix.frameworks import CONFIGURATIONS, FRAMEWORKS
from tests.adapters.matrix.story import assert_no_step_lost, live_through
from tests.support.framework_results import logs, prepare_second_run
from tests.support.harness import FtJob

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OFTEN = ("Transformers",)  # in CI, as it is plain and on one rank
CELLS = [
    pytest.param(*cell, marks=() if cell[0] in OFTEN and cell[1:] == ("plain", 1) else pytest.mark.slow)
    for cell in itertools.product(FRAMEWORKS, CONFIGURATIONS, (1, 2))
]
NOT_THEIRS = "torchdata saves no random numbers of a loader's workers"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "configuration", "ranks"), CELLS)
def test_a_job_stands_all_faults(name: str, configuration: str, ranks: int, job: FtJob) -> None:
    """Taken out: where state_dict() does not give what was restored until the loop is there, a job that is killed in
    its first step behind storage makes steps too many. For the rest see the tests of each framework.
    """
    framework = FRAMEWORKS[name]
    pytest.importorskip(framework.needs, reason=f"{framework.needs} is not installed (make frameworks)")
    framework.start(job, configuration, ranks)
    assert job.wait(170) == 0, job.stderr + logs(job)
    undisturbed = framework.left(job.out)
    assert len(undisturbed) >= 2 * ranks, undisturbed.keys()
    prepare_second_run(job)
    faults = framework.faults(configuration, ranks)
    live_through(job, lambda: framework.start(job, configuration, ranks, faults), faults)
    assert framework.left(job.out) == undisturbed
    assert_no_step_lost(job, faults)
    told = "".join(line for line in logs(job).splitlines() if NOT_THEIRS not in line)
    for sentence in ("not exact", "is not saved"):
        assert sentence not in told, f"a line says {sentence!r} of an exact run"
    job.assert_clean()
