"""Checkpoints in a bucket of a real S3 server: conditions, uploads in parts, and what is said where it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.buckets import (
    BUCKET,
    READER,
    FaultyProxy,
    Refusal,
    Request,
    ResetConnection,
    needs_server,
)  # fmt: skip
from tests.support.checkpoints import assert_whole, commit

from ftlaunch.checkpoints.stores.fetching import fetch_object
from ftlaunch.checkpoints.stores.store import ChangedError, CheckpointStore, open_store
from ftlaunch.checkpoints.stores.stored_checkpoints import OvertakenError, StoredCheckpoints
from ftlaunch_contract.checkpoint import layout

pytestmark = needs_server


@pytest.fixture
def store(proxy: FaultyProxy, address: str) -> CheckpointStore:
    return open_store(address)


def nothing(count: int) -> None:
    pass


@pytest.mark.long
def test_only_the_expected_version_is_replaced(store: CheckpointStore) -> None:
    first = store.replace("a", b"1", None)
    with pytest.raises(ChangedError):
        store.replace("a", b"2", None)
    second = store.replace("a", b"2", first)
    with pytest.raises(ChangedError):
        store.replace("a", b"3", first)
    assert store.read("a") == (b"2", second)
    assert store.read("b") is None


def test_an_upload_is_whole_and_one_that_fails_is_aborted(
    store: CheckpointStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 100_000)
    spent: list[int] = []
    store.upload(source, "steps/a/b", spent.append)
    assert proxy.kinds["PART"] == len(spent) == 4
    assert sum(spent) == source.stat().st_size
    fetch_object(store, "steps/a/b", tmp_path / "copy", nothing)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.upload(source, "steps/a/c", stop)
    assert proxy.kinds["ABORT"] == 1
    assert list(store.names("steps/")) == ["steps/a/b"]
    store.delete("steps/a/b")
    store.delete("steps/a/b")
    assert not list(store.names(""))


def test_a_part_of_an_object_is_read_and_nothing_behind_its_end(store: CheckpointStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    content = bytes(range(256)) * 10_000
    source.write_bytes(content)
    store.upload(source, "steps/a", nothing)
    size = len(content)
    for begin, end in ((0, 100), (1000, size - 1), (size - 10, size), (size - 10, size + 10), (size, size + 10)):
        assert b"".join(store.read_pieces("steps/a", (begin, end))) == content[begin:end]
    assert b"".join(store.read_pieces("steps/a")) == content
    with pytest.raises(FileNotFoundError):
        list(store.read_pieces("steps/b", (0, 10)))


def test_an_empty_object_comes_back_as_an_empty_file(store: CheckpointStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.touch()
    store.upload(source, "steps/a", nothing)
    fetch_object(store, "steps/a", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b""


@pytest.mark.parametrize("kind", ["PART", "PUT", "GET"])
@pytest.mark.parametrize("is_reset", [True, False])
def test_a_failure_for_a_while_is_not_noticed(
    kind: str, is_reset: bool, store: CheckpointStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    def fault(request: Request) -> Refusal | None:
        if request.kind != kind or proxy.fired >= 2:
            return None
        if is_reset:
            raise ResetConnection
        return Refusal(503)

    proxy.fault = fault
    for size in (100, 9 << 20):
        source = tmp_path / "source"
        source.write_bytes(b"x" * size)
        store.upload(source, "steps/a", nothing)
        fetch_object(store, "steps/a", tmp_path / "copy", nothing)
        assert (tmp_path / "copy").stat().st_size == size
    assert proxy.fired == 2


def test_an_empty_machine_goes_on_and_the_overtaken_one_commits_nothing(
    proxy: FaultyProxy, address: str, tmp_path: Path
) -> None:
    first, second = (
        StoredCheckpoints(open_store(address), tmp_path / name / "checkpoints", job="net", owner=name)
        for name in ("first", "second")
    )
    first.claim()
    commit(tmp_path / "first", 10)
    first.publish(keep=5)
    second.claim()
    assert second.bring(newer_than=-1) == []
    assert_whole(layout.iteration_dir(tmp_path / "second/checkpoints", 10))
    commit(tmp_path / "first", 20)
    with pytest.raises(OvertakenError, match="second has taken over"):
        first.publish(keep=5)
    assert second.newest == 10


@pytest.mark.parametrize(
    ("bucket", "key", "secret", "said"),
    [
        ("no-such-bucket", None, None, "there is no bucket `no-such-bucket` there"),
        (BUCKET, None, "wr0ng", "the credentials are wrong or have expired"),
        (BUCKET, "NOBODY", None, "the credentials are wrong or have expired"),
        (BUCKET, READER, None, "the credentials do not allow to write objects in the bucket"),
    ],
)
def test_what_refuses_is_named_without_a_secret(
    bucket: str, key: str | None, secret: str | None, said: str,
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    for name, value in (("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)):
        if value is not None:
            monkeypatch.setenv(name, value)
    stored = StoredCheckpoints(open_store(f"s3://{bucket}/refused"), tmp_path, job="net", owner="me")
    with pytest.raises(OSError) as refused:
        stored.claim()
    assert said in str(refused.value.strerror)
    assert not any(word in str(refused.value) for word in ("5ecret", "wr0ng", "http"))


@pytest.mark.parametrize("address", ["s3://B/a", "s3://a", "s3://bucket/a//b", "s3://bucket/../b"])
def test_an_address_that_no_bucket_can_have_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"it must be s3://BUCKET/PREFIX|the prefix must be names"):
        open_store(address)
