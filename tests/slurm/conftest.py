"""Fixtures of the jobs under Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.machines import undisturbed
from tests.support.slurm import Slurm, cluster
from tests.support.slurm_jobs import NODES, STEPS


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """A cluster of three nodes."""
    with cluster(3) as slurm:
        yield slurm


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four ranks on one machine, undisturbed: what each job of two nodes must end as."""
    return undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)
