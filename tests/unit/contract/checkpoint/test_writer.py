"""Checkpoints on storage: what is written, what a crash leaves, what is refused, what is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support.checkpoints import common, image

from ftlaunch_contract.checkpoint import layout, retention, tensor_file, verify, writer
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged, whole_chunk


def save(root: Path, step: int, world_size: int = 2, seen: dict[int, Any] | None = None) -> Path:
    """Commit a checkpoint in which every rank has half of a weight and a scalar of its own."""
    target = writer.SaveTarget(root / "checkpoints", step, "interval", "net", world_size)
    root.mkdir(exist_ok=True)
    writer.prepare(target)
    for rank in range(world_size):
        half = Chunk("w", "F32", (3,), "w", (3 * rank,), (3 * world_size,))
        own = whole_chunk(f"loss@{rank}", "F64", ())
        model = image(root / "model", {half: torch.full((3,), float(rank)).numpy().tobytes()})
        opt = image(root / "opt", {own: torch.tensor(step / 3).double().numpy().tobytes()} if rank == 0 else {})
        writer.write_shard(target, rank, {"model": model, "opt": opt}, common(step, x=(seen or {}).get(rank)))
        os.close(model)
        os.close(opt)
    directory, size = writer.commit(target)
    assert size == sum(f.stat().st_size for f in directory.iterdir() if f.name != layout.METADATA)
    return directory


# --- tensor files -----------------------------------------------------------------------------------------


def test_a_header_comes_back_and_safetensors_reads_it(tmp_path: Path) -> None:
    chunks = {
        whole_chunk("flag", "BOOL", (3,)): b"\1\0\1",
        whole_chunk("half", "BF16", (1,)): b"\x80\x3f",
        whole_chunk("nothing", "I64", (0, 4)): b"",
        Chunk("part", "F64", (1, 2), "all of it", (1, 0), (2, 2)): bytes(8) + b"\0\0\0\0\0\0\xf0\x3f",
        whole_chunk("scalar", "I32", ()): b"\7\0\0\0",
    }
    fd = image(tmp_path / "x.safetensors", chunks)
    found, offsets, size = tensor_file.read_header(fd)
    os.close(fd)
    assert found == tensor_file.file_order(chunks)
    assert size == (tmp_path / "x.safetensors").stat().st_size
    for chunk, offset in zip(found, offsets, strict=True):
        assert offset % tensor_file.DTYPE_BYTES[chunk.dtype] == 0
    tensors = load_file(tmp_path / "x.safetensors")
    assert tensors["part"].tolist() == [[0.0, 1.0]]
    assert (tensors["half"].item(), tensors["scalar"].item()) == (1.0, 7)
    assert tensors["flag"].tolist() == [True, False, True]
    assert tensors["nothing"].shape == (0, 4)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut short"),
        (b"\xff" * 64, "cut short"),
        ((8).to_bytes(8, "little") + b"not json", "cannot be read"),
        ((2).to_bytes(8, "little") + b"[]", "cannot be read"),
        ((15).to_bytes(8, "little") + b'{"a": {"b": 1}}', "cannot be read"),
    ],
)
def test_what_is_no_tensor_file_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    with pytest.raises(Damaged, match=words):
        tensor_file.read_header(fd)
    os.close(fd)


@pytest.mark.parametrize("entry", [{"dtype": "F33"}, {"shape": [9]}, {"data_offsets": [0, 1 << 40]}])
def test_a_header_that_contradicts_itself_is_refused(entry: dict[str, Any], tmp_path: Path) -> None:
    header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}
    text = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    with pytest.raises(Damaged, match=r"contradicts itself about a|cannot be read"):
        tensor_file.read_header(fd)
    os.close(fd)


# --- saving -----------------------------------------------------------------------------------------------


def test_a_checkpoint_says_where_everything_is(tmp_path: Path) -> None:
    directory = save(tmp_path, 120, seen={0: "a", 1: "b"})
    assert directory.name == "iteration_0000120"
    assert (directory.parent / layout.TRACKER).read_text() == "120\n"
    metadata = verify.verify(directory)
    assert {key: metadata[key] for key in ("version", "step", "world_size")} == {
        "version": layout.VERSION,
        "step": 120,
        "world_size": 2,
    }
    assert set(metadata["files"]) == {
        "net-model-0000000-0000002.safetensors",
        "net-model-0000001-0000002.safetensors",
        "net-opt-0000000-0000002.safetensors",  # rank 1 has nothing for one
        "common.json",
    }
    assert {path.name for path in directory.iterdir()} == {*metadata["files"], "metadata.json", layout.MARK}
    chunks = metadata["tensors"]["w"]["chunks"]
    assert metadata["tensors"]["w"]["shape"] == [6]
    assert [(c["offset"], c["shape"], c["file"][:17]) for c in chunks] == [
        ([0], [3], "net-model-0000000"),
        ([3], [3], "net-model-0000001"),
    ]
    said = json.loads((directory / layout.COMMON).read_bytes())
    assert (said["step"], said["why"], said["consumed_samples"]) == (120, "interval", 8)
    assert (said["state"], said["ranks"]) == ({"x": "a"}, {"1": {"x": "b"}})


def test_a_snapshot_of_another_step_is_not_saved(tmp_path: Path) -> None:
    target = writer.SaveTarget(tmp_path, 2, "interval", "net", 1)
    writer.prepare(target)
    with pytest.raises(Damaged, match="snapshot of rank 0 is of step 1"):
        writer.write_shard(target, 0, {}, common(1))


def test_what_is_left_of_an_attempt_to_save_is_taken_away(tmp_path: Path) -> None:
    target = writer.SaveTarget(tmp_path, 2, "interval", "net", 1)
    for _ in range(2):  # the second finds what the first has left
        writer.prepare(target)
        writer.write_shard(target, 0, {}, common(2))
    assert layout.list_incomplete(tmp_path) == [(2, layout.incomplete_dir(tmp_path, 2))]
    assert layout.list_iterations(tmp_path) == []
    writer.discard(target)
    assert list(tmp_path.iterdir()) == []


# --- damage -----------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name", ["net-model-0000001-0000002.safetensors", "net-opt-0000000-0000002.safetensors", "common.json"]
)
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip, "does not match its checksum"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes, not"),
        (Path.unlink, "is missing"),
    ],
    ids=["flipped bit", "cut short", "missing"],
)
def test_damage_to_any_file_is_found(name: str, harm: Any, words: str, tmp_path: Path) -> None:
    directory = save(tmp_path, 1)
    harm(directory / name)
    with pytest.raises(Damaged, match=f"{name} .*{words}"):
        verify.verify(directory)


def test_damage_to_the_metadata_is_found(tmp_path: Path) -> None:
    directory = save(tmp_path, 1)
    good = (directory / layout.METADATA).read_bytes()
    for bad, words in (
        (good.replace(b'"step": 1', b'"step": 2'), "does not match its own checksum"),
        (good[:-2], "cannot be read"),
        (b"[]", "does not match its own checksum"),
        (verify.seal({**json.loads(good), "version": 99}), "version 99"),
    ):
        (directory / layout.METADATA).write_bytes(bad)
        with pytest.raises(Damaged, match=words):
            verify.verify(directory)
    (directory / layout.METADATA).unlink()
    with pytest.raises(Damaged, match=r"metadata\.json is missing"):
        verify.verify(directory)


def test_the_newest_that_verifies_is_taken_and_the_refused_is_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        flip(save(tmp_path, step) / "common.json") if step > 1 else save(tmp_path, step)
    checkpoints = tmp_path / "checkpoints"
    step, refusals = verify.newest_verified(checkpoints)
    assert step == 1
    assert [refusal.step for refusal in refusals] == [3, 2]
    shelter = checkpoints / layout.QUARANTINE
    assert (shelter / "iteration_0000003.why.txt").read_text() == "common.json does not match its checksum\n"
    assert (shelter / "iteration_0000003" / "metadata.json").exists()
    flip(save(tmp_path, 3) / "common.json")
    verify.newest_verified(checkpoints)
    assert (shelter / "iteration_0000003.1").is_dir()  # the first refused one is not lost


# --- retention --------------------------------------------------------------------------------------------


def test_retention_keeps_the_newest_and_what_is_not_ours(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        save(tmp_path, step)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "iteration_0000010" / "notes.txt").write_text("mine")
    (checkpoints / "iteration_best").mkdir()
    retired = dict(retention.retire(checkpoints, 2))
    assert list(retired) == [10, 5]
    assert retired[5] is None
    assert "notes.txt in it is not ours" in str(retired[10])
    assert [step for step, _ in layout.list_iterations(checkpoints)] == [20, 15]
    assert (layout.incomplete_dir(checkpoints, 10) / "notes.txt").read_text() == "mine"
    assert (checkpoints / "iteration_best").is_dir()
    assert list(retention.retire(checkpoints, 0)) == [(15, None)]  # never the newest
    verify.verify(checkpoints / "iteration_0000020")


# --- a commit that could not be loaded --------------------------------------------------------------------


def commit_of(root: Path, states: list[dict[str, Any]], chunks: list[list[Chunk]]) -> Path:
    """Commit what ranks have saved: their states, and the chunks in their slots."""
    target = writer.SaveTarget(root / "checkpoints", 4, "interval", "net", len(states))
    writer.prepare(target)
    for rank, (state, there) in enumerate(zip(states, chunks, strict=True)):
        fd = image(root / f"{rank}", {chunk: bytes(chunk.nbytes) for chunk in there})
        writer.write_shard(target, rank, {"opt": fd}, common(4, **state))
        os.close(fd)
    return writer.commit(target)[0]


def tensor(key: str, rank: int = 0) -> Chunk:
    return whole_chunk(f"{key}@{rank}" if rank else key, "F32", (2,))


@pytest.mark.parametrize(
    "state",
    [
        {"m": {"kind": "module", "tensors": ["w"], "extra": {}}},
        {"o": {"kind": "optimizer", "state": {"m.w": {"x": {"__tensor__": "m.w"}}}}},
        {"b": {"kind": "other", "state": [[{"__array__": "m.w"}]]}},
    ],
)
def test_a_tensor_that_is_named_and_that_no_rank_has_saved_refuses_the_commit(
    state: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(Damaged, match=r"the state of rank 1 names the tensor m\.w, which no rank has saved"):
        commit_of(tmp_path, [{}, state], [[tensor("x")], []])
    with pytest.raises(Damaged, match=r"the state of rank 0 names the tensor m\.w"):
        commit_of(tmp_path, [state, state], [[], [tensor("m.w", 1)]])
    assert layout.list_iterations(tmp_path / "checkpoints") == []
    assert commit_of(tmp_path, [{}, state], [[], [tensor("m.w", 1)]]).is_dir()


def test_a_tensor_of_which_a_part_is_missing_refuses_the_commit(tmp_path: Path) -> None:
    half = Chunk("w", "F32", (2,), "w", (0,), (4,))
    with pytest.raises(Damaged, match=r"of the tensor w the ranks have saved 2 values, not 4"):
        commit_of(tmp_path, [{}, {}], [[half], [half]])
    assert commit_of(tmp_path, [{}, {}], [[half], [Chunk("w", "F32", (2,), "w", (2,), (4,))]]).is_dir()
