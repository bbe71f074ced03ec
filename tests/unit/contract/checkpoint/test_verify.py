"""Whatever is done to a checkpoint: it is refused in one sentence, kept aside, and the one before is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import MODEL, OPT, commit, put, refused, reseal

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.files import checksums

Harm = Callable[[Path], None]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def link_out(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: list[tuple[Harm, str]] = [
    (flip, "does not match its checksum|cannot be read|does not match its own checksum"),
    (cut, "bytes, not|cannot be read"),
    (zero, "does not match its checksum|cannot be read"),
    (empty, "has 0 bytes, not|cannot be read"),
    (Path.unlink, "is missing"),
    (link_out, "is not a file, but a symbolic link"),
    (pipe, "is not a file, but something else"),
    (folder, "is not a file, but something else"),
]


@pytest.fixture
def tmp_path(memory: Path) -> Path:
    """Nothing here depends on a disk."""
    return memory


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """The checkpoint of step 2, over one of step 1."""
    commit(tmp_path, 1)
    return commit(tmp_path, 2)


@pytest.mark.parametrize("name", [MODEL, OPT, layout.COMMON, layout.METADATA])
@pytest.mark.parametrize(("harm", "words"), HARMS, ids=[harm.__name__ for harm, _ in HARMS])
def test_a_file_that_was_harmed(newest: Path, tmp_path: Path, harm: Harm, words: str, name: str) -> None:
    harm(newest / name)
    why = refused(tmp_path)
    assert name in why
    assert any(word in why for word in words.split("|")), why


def test_files_that_were_swapped(newest: Path, tmp_path: Path) -> None:
    first, second = newest / "net-opt-0000000-0000002.safetensors", newest / "net-opt-0000001-0000002.safetensors"
    first.rename(newest / "x")
    second.rename(first)
    (newest / "x").rename(second)
    assert refused(tmp_path) == f"{first.name} does not match its checksum"


def test_a_checkpoint_under_another_name(newest: Path, tmp_path: Path) -> None:
    """Step 1's, copied to where step 2's was."""
    (newest.parent / "iteration_0000001").rename(newest.parent / "x")
    newest.rename(newest.parent / "iteration_0000001")
    (newest.parent / "x").rename(newest)
    step, refusals = verify.newest_verified(newest.parent)
    assert step == -1
    assert [refusal.why for refusal in refusals] == [
        "it is the checkpoint of step 1 under another name",
        "it is the checkpoint of step 2 under another name",
    ]


# --- what has the right checksums and is wrong all the same --------------------------------------------------


def files(metadata: dict[str, Any]) -> dict[str, Any]:
    return metadata["files"][OPT]  # type: ignore[no-any-return]


def chunk(metadata: dict[str, Any]) -> dict[str, Any]:
    return metadata["tensors"]["opt0"]["chunks"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(step="2"), "`step` is not a whole number"),
        (lambda m: m.update(step=True), "`step` is not a whole number"),
        (lambda m: m.update(step=10**400), "`step` is not a whole number"),
        (lambda m: m["tensors"].update({"a\n\x1b[31mb": 7}), "the tensor a??[31mb is not an object"),
        (lambda m: m.update(world_size=0), "`world_size` is not a whole number from 1"),
        (lambda m: m.update(version=99), "layout is version 99"),
        (lambda m: m.update(version="x" * 10**6), "layout is version"),
        (lambda m: m.pop("files"), "`files` is not an object"),
        (lambda m: m.update(files=[]), "`files` is not an object"),
        (lambda m: m["files"].pop("common.json"), "says nothing of common.json"),
        (lambda m: files(m).update(bytes=-1), "`bytes` of net-opt"),
        (lambda m: files(m).update(bytes=1e300), "`bytes` of net-opt"),
        (lambda m: files(m).update(bytes="64"), "`bytes` of net-opt"),
        (lambda m: files(m).update(bytes=1 << 40), "is not a list of one digest per 64 MiB"),
        (lambda m: files(m).update(xxh3_128=[]), "is not a list of one digest per 64 MiB"),
        (lambda m: files(m).update(xxh3_128="0" * 64), "is not a list of one digest per 64 MiB"),
        (lambda m: files(m).update(xxh3_128=[None]), "holds something else"),
        (lambda m: m["files"].update({"../../elsewhere": files(m)}), "'../../elsewhere' is not the plain name"),
        (lambda m: m["files"].update({"/etc/passwd": files(m)}), "is not the plain name"),
        (lambda m: m["files"].update({"..": files(m)}), "is not the plain name"),
        (lambda m: m["files"].update({"": files(m)}), "is not the plain name"),
        (lambda m: m["files"].update({"a\0b": files(m)}), "is not the plain name"),
        (lambda m: m["files"].update({"\ud800": files(m)}), "is not the plain name"),
        (lambda m: m["files"].update({"x" * 256: files(m)}), "is not the plain name"),
        (lambda m: m.pop("tensors"), "`tensors` is not an object"),
        (lambda m: m["tensors"].update(opt0=7), "the tensor opt0 is not an object"),
        (lambda m: m["tensors"]["opt0"].update(dtype="F33"), "`dtype` of opt0 is not known"),
        (lambda m: m["tensors"]["opt0"].update(shape="64"), "`shape` of opt0 is not a list"),
        (lambda m: m["tensors"]["opt0"].update(chunks=[]), "opt0 has no chunks"),
        (lambda m: chunk(m).update(offset=[1]), "a chunk of opt0 reaches beyond its tensor"),
        (lambda m: chunk(m).update(shape=[1 << 40]), "a chunk of opt0 reaches beyond its tensor"),
        (lambda m: chunk(m).update(shape=[8, 8]), "a chunk of opt0 reaches beyond its tensor"),
        (lambda m: chunk(m).update(file="/dev/shm/x"), "lies in no file of the checkpoint"),
        (lambda m: chunk(m).update(file=MODEL), "does not hold what metadata.json says"),
        (lambda m: chunk(m).update(name="opt1"), "does not hold what metadata.json says"),
        (lambda m: m["tensors"].pop("opt0"), "does not hold what metadata.json says"),
    ],
)  # fmt: skip
def test_metadata_that_lies(newest: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], words: str) -> None:
    reseal(newest, change)
    assert words in refused(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"digest": "x", "digest": "y"}', "a key stands twice"),
        (b'{"step": NaN}', "NaN is not a number of JSON"),
        (b'{"step": -Infinity}', "-Infinity is not a number of JSON"),
        (b'{"step": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b"\xff\xfe\xfd", "cannot be read"),
        (b"null", "does not match its own checksum"),
        (b"7", "does not match its own checksum"),
        (b"", "cannot be read"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_metadata_that_is_a_bomb(newest: Path, tmp_path: Path, text: bytes, words: str) -> None:
    (newest / layout.METADATA).write_bytes(text)
    assert words in refused(tmp_path)


def test_metadata_that_is_too_large_to_be_read(newest: Path, tmp_path: Path) -> None:
    os.truncate(newest / layout.METADATA, 1 << 40)  # sparse: a terabyte that takes no room
    assert "more than any that was written by this program" in refused(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"{", "cannot be used"),
        (b"[]", "it is not an object"),
        (b'{"step": 1}', "it is of step 1, not 2"),
        (b'{"step": 2, "world_size": 2, "consumed_samples": 1.5}', "`consumed_samples`"),
        (b'{"step": 2, "world_size": 2, "consumed_samples": 1, "state": {}, "ranks": []}', "`ranks`"),
        (b'{"step": 2, "world_size": 2, "consumed_samples": 1, "state": {}, "ranks": {"1": 4}}', "rank 1"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_state_that_is_none(newest: Path, tmp_path: Path, text: bytes, words: str) -> None:
    put(newest, layout.COMMON, text)
    why = refused(tmp_path)
    assert why.startswith("common.json cannot be used")
    assert words in why


def test_a_link_in_the_place_of_a_checkpoint_is_none(newest: Path, tmp_path: Path) -> None:
    newest.rename(tmp_path / "elsewhere")
    newest.symlink_to(tmp_path / "elsewhere")
    assert verify.newest_verified(newest.parent) == (1, [])


def test_a_checkpoint_that_cannot_be_moved_is_passed_over(newest: Path) -> None:
    (newest / layout.METADATA).unlink()
    (newest.parent / "quarantine").write_text("in the way")
    step, [refusal] = verify.newest_verified(newest.parent)
    assert step == 1
    assert "still in" in refusal.to


# --- large files -------------------------------------------------------------------------------------------


def test_damage_in_a_later_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of several blocks, each with a digest of its own."""
    monkeypatch.setattr(checksums, "BLOCK", 1 << 10)
    for step in (1, 2):
        directory = commit(tmp_path, step, size=4096)
    entry = verify.read_metadata(directory)["files"][OPT]
    assert len(entry[checksums.NAME]) == 5
    data = bytearray((directory / OPT).read_bytes())
    data[-1] ^= 0x80
    (directory / OPT).write_bytes(data)
    step, [refusal] = verify.newest_verified(directory.parent)
    assert (step, refusal.why) == (1, f"{OPT} does not match its checksum")
