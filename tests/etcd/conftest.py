"""Fixtures of the jobs that meet in etcd."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.agents import NodesJob
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.harness import FtJob
from tests.support.undisturbed import tiny_job

from ftlaunch.nodes.channel.etcd.client import EtcdClient, EtcdRefused


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    """Three members."""
    with etcd_cluster() as made:
        yield made


@pytest.fixture
def guarded() -> Iterator[EtcdCluster]:
    """One member; user `me` with password `5ecret` may write what jobs write, and nobody else anything."""
    with etcd_cluster(1) as made:
        asked = EtcdClient(made.spec)
        for user, password in (("root", "r00t"), ("me", "5ecret"), ("stranger", "5tranger")):
            _add_user(asked, user, password)
        asked.ask("/v3/auth/role/add", {"name": "root"})
        asked.ask("/v3/auth/role/add", {"name": "jobs"})
        keys = {"permType": "READWRITE", "key": _in_base64("ftlaunch/"), "range_end": _in_base64("ftlaunch0")}
        asked.ask("/v3/auth/role/grant", {"name": "jobs", "perm": keys})
        asked.ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
        asked.ask("/v3/auth/user/grant", {"user": "me", "role": "jobs"})
        asked.ask("/v3/auth/enable", {})
        yield made


def _add_user(asked: EtcdClient, user: str, password: str) -> None:
    """The hash of a password may take longer than an answer may; etcd stores it all the same."""
    try:
        asked.ask("/v3/auth/user/add", {"name": user, "password": password}, patience_seconds=30.0)
    except EtcdRefused as refused:
        assert "already exists" in str(refused)


def _in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def nodes(tmp_path: Path, cluster: EtcdCluster) -> Iterator[NodesJob]:
    """A job of two nodes with two ranks each; what a failing test leaves behind is removed."""
    job = NodesJob(tmp_path)
    job.etcd = cluster.endpoints
    yield job
    job.dispose()


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> FtJob:
    """The tiny job, four ranks on one node, 30 steps, undisturbed: what the jobs of several nodes must end as."""
    return tiny_job(tmp_path_factory, ranks=4)
