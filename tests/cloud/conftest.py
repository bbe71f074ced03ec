"""A server for the tests of one file, and a proxy before it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.buckets import BUCKET, BucketServer, FaultyProxy, bucket_server, environment


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with bucket_server(tmp_path_factory.mktemp("s3") / "server") as made:
        yield made


@pytest.fixture
def proxy(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    made = FaultyProxy(server)
    for name, value in environment(made.endpoint).items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"s3://{BUCKET}/of {tmp_path.parent.name} {tmp_path.name}/a.b"
