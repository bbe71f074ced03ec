"""Fixtures of the jobs of several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.agents import NodesJob
from tests.support.harness import FtJob
from tests.support.undisturbed import tiny_job


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodesJob]:
    """A job of two nodes with two ranks each; what a failing test leaves behind is removed."""
    job = NodesJob(tmp_path)
    yield job
    job.dispose()


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> FtJob:
    """The tiny job, four ranks on one node, 30 steps, undisturbed: what the jobs of several nodes must end as."""
    return tiny_job(tmp_path_factory, ranks=4)
