"""Undisturbed jobs, each run once, and skipping where Lightning is not installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support import lightning_jobs
from tests.support.harness import FtJob
from tests.support.packages import require

require("lightning", reason="Lightning is not installed (pip install lightning)")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, object]]:
    """What a job of a style leaves on so many ranks."""
    known: dict[tuple[str, int], dict[str, object]] = {}

    def run(style: str, ranks: int) -> dict[str, object]:
        if (style, ranks) not in known:
            job = FtJob(tmp_path_factory.mktemp("undisturbed"))
            try:
                lightning_jobs.start(job, style, ranks=ranks)
                assert job.wait() == 0, job.stderr
            finally:
                job.dispose()
            known[style, ranks] = lightning_jobs.left(job.out)
        return known[style, ranks]

    return run
