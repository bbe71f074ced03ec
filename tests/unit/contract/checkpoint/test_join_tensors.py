"""Of a chunk that several nodes have saved a checkpoint names one; the others' files are verified all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.checkpoints import common, flip_a_bit, image, reseal

from ftlaunch_contract.checkpoint import layout, verify, writer
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged, whole_chunk

SHARED = whole_chunk("model.w", "U8", (32,))
HALVES = [Chunk("half", "U8", (8,), "half", (8 * number,), (16,)) for number in range(2)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of four ranks on two nodes: each node has saved a tensor and both halves of another."""
    target = writer.SaveTarget(tmp_path / "checkpoints", 1, "interval", "net", 4)
    writer.prepare(target)
    for rank in range(4):
        held = {HALVES[rank % 2]: bytes(8), whole_chunk(f"own@{rank}", "U8", (4,)): bytes(4)}
        if rank % 2:
            held[SHARED] = bytes(32)
        fd = image(tmp_path / "file", held)
        assert writer.write_shard(target, rank, {"opt": fd}, common(1)) == os.fstat(fd).st_size
        os.close(fd)
    return writer.commit(target)[0]


def test_the_lowest_ranks_chunk_is_named(checkpoint: Path) -> None:
    tensors = verify.verify(checkpoint)["tensors"]
    files = {key: [chunk["file"] for chunk in tensor["chunks"]] for key, tensor in tensors.items()}
    shard = [layout.shard_name("net", "opt", rank, 4) for rank in range(4)]
    owns = {f"own@{rank}": [shard[rank]] for rank in range(4)}
    assert files == {"model.w": [shard[1]], "half": shard[:2], **owns}


@pytest.mark.parametrize("rank", range(4))
def test_every_file_is_verified(checkpoint: Path, rank: int) -> None:
    for path in checkpoint.glob("*.safetensors"):
        if f"-{rank:07d}-" in path.name:
            path.rename(checkpoint / "aside")
            with pytest.raises(Damaged, match="is missing"):
                verify.verify(checkpoint)
            (checkpoint / "aside").rename(path)
    verify.verify(checkpoint)
    flip_a_bit(checkpoint)
    with pytest.raises(Damaged, match="does not match its checksum"):
        verify.verify(checkpoint)


def test_a_chunk_that_is_named_nowhere_is_not_known(checkpoint: Path) -> None:
    reseal(checkpoint, lambda metadata: metadata["tensors"].pop("own@3"))
    with pytest.raises(Damaged, match=r"does not hold what metadata\.json says"):
        verify.verify(checkpoint)
