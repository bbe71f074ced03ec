"""Whatever is done to a checkpoint: it is refused in one sentence, kept aside, and the one before is taken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import assert_whole, commit

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.files import checksums

MODEL = "net-model-0000001-0000002.safetensors"
OPT = "net-opt-0000000-0000002.safetensors"
Harm = Callable[[Path], None]


@pytest.fixture
def tmp_path(memory: Path) -> Path:
    """Nothing here depends on a disk."""
    return memory


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


def refused(root: Path) -> str:
    """Why the checkpoint of step 2 is refused; everything else there is to a refusal is checked here."""
    checkpoints = root / "checkpoints"
    step, refusals = verify.newest_verified(checkpoints)
    assert step == 1
    [refusal] = refusals
    assert refusal.step == 2
    aside = checkpoints / "quarantine" / "iteration_0000002"
    assert refusal.to == str(aside)
    assert aside.is_dir(), "it is kept"
    assert aside.with_suffix(".why.txt").read_text() == f"{refusal.why}\n"
    assert "\n" not in refusal.why
    assert len(refusal.why) < 300
    assert_whole(checkpoints / "iteration_0000001")
    return refusal.why


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


def reseal(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change metadata.json, and put its own checksum right."""
    metadata = json.loads((directory / layout.METADATA).read_bytes())
    change(metadata)
    (directory / layout.METADATA).write_bytes(verify.seal(metadata))


def put(directory: Path, name: str, data: bytes) -> None:
    """Replace a file, and put its size and checksum right."""
    (directory / name).write_bytes(data)
    entry = {"bytes": len(data), checksums.NAME: checksums.of_bytes(data)}
    reseal(directory, lambda metadata: metadata["files"].update({name: entry}))


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


def tensor_file(header: object, data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


GOOD = {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tensor_file({"opt0": GOOD}, length=1 << 40), "is cut short"),
        (tensor_file({"opt0": GOOD}, length=2**64 - 1), "is cut short"),
        (tensor_file({"opt0": {**GOOD, "shape": [1 << 40]}}), "contradicts itself about opt0"),
        (tensor_file({"opt0": {**GOOD, "shape": [1 << 40], "data_offsets": [0, 1 << 40]}}), "does not hold what"),
        (tensor_file({"opt0": {**GOOD, "shape": [-1, -64]}}), "not a whole number"),
        (tensor_file({"opt0": {**GOOD, "shape": [64.0]}}), "not a whole number"),
        (tensor_file({"opt0": {**GOOD, "shape": "64"}}), "is not a list"),
        (tensor_file({"opt0": {**GOOD, "data_offsets": [-64, 0]}}), "not a whole number"),
        (tensor_file({"opt0": {**GOOD, "data_offsets": [0]}}), "are not two"),
        (tensor_file({"opt0": {**GOOD, "data_offsets": [64, 0]}}), "contradicts itself"),
        (tensor_file({"opt0": {**GOOD, "dtype": ["U8"]}}), "is not text"),
        (tensor_file({"opt0": GOOD, "more": GOOD}), "contradicts itself"),  # two in the same place
        (tensor_file({"opt0": GOOD, "__metadata__": {"ftlaunch.chunks": "[" * 100_000}}), "nested too deeply"),
        (tensor_file({"opt0": GOOD, "__metadata__": {"ftlaunch.chunks": 3}}), "cannot be read"),
        (tensor_file({"opt0": GOOD, "__metadata__": {"ftlaunch.chunks": '{"opt0": 1}'}}), "is not an object"),
        (tensor_file(b"[" * 100_000), "nested too deeply"),
        (tensor_file(b'{"opt0": 1, "opt0": 1}'), "a key stands twice"),
        (tensor_file({"other": GOOD}), "does not hold what metadata.json says"),
        (tensor_file({"opt0": GOOD}, bytes(65)), "does not hold what metadata.json says"),
        (tensor_file({}), "does not hold what metadata.json says"),
        (b"", "is cut short"),
        (b"\xff" * 8, "is cut short"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_tensor_file_that_lies(newest: Path, tmp_path: Path, data: bytes, words: str) -> None:
    put(newest, OPT, data)
    assert words in refused(tmp_path)


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


def test_digests_are_what_xxh128sum_prints() -> None:
    """The empty file's as xxHash's own documentation has it."""
    assert checksums.of_bytes(b"") == ["99aa06d3014798d86001c324468d497f"]


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 1000, 1001])
@pytest.mark.parametrize("piece", [1, 30, 100, 250, 2000])
def test_digests_do_not_depend_on_how_the_bytes_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, piece: int
) -> None:
    monkeypatch.setattr(checksums, "BLOCK", 100)
    data = os.urandom(size)
    (tmp_path / "x").write_bytes(data)
    running = checksums.Running()
    for begin in range(0, size, piece):
        running.update(memoryview(data)[begin : begin + piece])
    with (tmp_path / "x").open("rb") as file:
        read = [checksums.of_block(file.fileno(), *block) for block in checksums.blocks(size)]
    assert running.finish() == read == checksums.of_bytes(data)
    assert len(read) == max(1, -(-size // 100))
