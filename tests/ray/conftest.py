"""Fixtures of the jobs on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import ray_cluster
from tests.support.agents import NodesJob
from tests.support.harness import FtJob
from tests.support.ray_cluster import RayCluster
from tests.support.undisturbed import tiny_job


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodesJob]:
    """A job of two nodes with two ranks each; what a failing test leaves behind is removed."""
    job = NodesJob(tmp_path)
    job.module = "ftlaunch_ray"
    yield job
    job.dispose()


@pytest.fixture
def cluster(nodes: NodesJob) -> Iterator[RayCluster]:
    """Three nodes."""
    yield from ray_cluster.made(nodes, 3)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> FtJob:
    """The tiny job, four ranks on one node, 30 steps, undisturbed: what the jobs on Ray must end as."""
    return tiny_job(tmp_path_factory, ranks=4)
