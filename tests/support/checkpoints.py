"""Snapshot slots and checkpoints of plain bytes, made without torch by the modules that make real ones."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftlaunch_contract.checkpoint import layout, tensor_file, verify, writer
from ftlaunch_contract.checkpoint.tensor_file import Chunk, whole_chunk
from ftlaunch_contract.files import checksums

MODEL = "net-model-0000001-0000002.safetensors"
OPT = "net-opt-0000000-0000002.safetensors"


def image(path: Path, tensors: dict[Chunk, bytes]) -> int:
    """Write a tensor file; return a descriptor for reading."""
    chunks = tensor_file.file_order(tensors)
    header, offsets = tensor_file.build_header(chunks)
    data = bytearray(header)
    for chunk, offset in zip(chunks, offsets, strict=True):
        assert offset == len(data)
        data += tensors[chunk]
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY)


def common(step: int, **state: Any) -> bytes:
    return json.dumps({"step": step, "consumed_samples": 8, "versions": {}, "state": state}).encode()


def content(step: int, group: str, rank: int, size: int) -> bytes:
    """Return the bytes of a tensor at a step; they differ between any two steps, groups and ranks."""
    return f"{group} {rank} {step};".encode().ljust(16, b".") * (size // 16)


def make_slots(root: Path, step: int, ranks: int = 2, size: int = 64) -> list[Path]:
    """Make a snapshot slot of each rank.

    Args:
        root: the directory of the slots.
        step: the step of the snapshots.
        ranks: the number of ranks.
        size: bytes of the one tensor of each group, a multiple of 16.

    Returns:
        The directories of the slots.
    """
    slots = []
    for rank in range(ranks):
        slot = root / f"slot_{rank}_{step}"
        slot.mkdir(parents=True, exist_ok=True)
        for group in layout.GROUPS:
            chunk = whole_chunk(f"{group}{rank}", "U8", (size,))
            os.close(image(layout.slot_file(slot, group), {chunk: content(step, group, rank, size)}))
        (slot / layout.COMMON).write_bytes(common(step, at=step))
        slots.append(slot)
    return slots


def request(root: Path, step: int, slots: list[Path], **more: Any) -> dict[str, Any]:
    """Return a supervisor's request to its saver to save a step."""
    return {
        "do": "save",
        "step": step,
        "why": "interval",
        "checkpoint_dir": str(root / "checkpoints"),
        "prefix": "net",
        "ranks": [str(slot) for slot in slots],
        "keep": 1,
        **more,
    }


def commit(root: Path, step: int, ranks: int = 2, size: int = 64) -> Path:
    """Commit a checkpoint of a step, from slots made for it; return its directory."""
    target = writer.SaveTarget(
        checkpoint_dir=root / "checkpoints",
        step=step,
        why="interval",
        prefix="net",
        world_size=ranks,
    )
    writer.prepare(target)
    for rank, slot in enumerate(make_slots(root, step, ranks, size)):
        writer.write_shard_of(target, rank, slot)
    return writer.commit(target)[0]


def assert_whole(directory: Path, ranks: int = 2, size: int = 64) -> None:
    """Check that each part of a checkpoint is of the checkpoint's step, to the last byte."""
    metadata = verify.verify(directory)
    step = metadata["step"]
    assert directory == layout.iteration_dir(directory.parent, step)
    assert json.loads((directory / layout.COMMON).read_bytes())["state"] == {"at": step}
    for rank in range(ranks):
        for group in layout.GROUPS:
            data = (directory / layout.shard_name("net", group, rank, ranks)).read_bytes()
            assert data.endswith(content(step, group, rank, size)), f"{group} of rank {rank} is not of step {step}"


def checkpoint(directory: Path, step: int, ranks: int = 1, why: str = "interval") -> Path:
    """Commit a checkpoint in which every rank has two rows of `model.w`, all holding the step; return its directory."""
    target = writer.SaveTarget(
        checkpoint_dir=directory,
        step=step,
        why=why,
        prefix="net",
        world_size=ranks,
    )
    writer.prepare(target)
    common = {
        "step": step,
        "consumed_samples": 4 * step,
        "versions": {"torch": "9.9"},
        "state": {"model": {"kind": "module", "tensors": ["w"], "extra": {}}},
    }
    for rank in range(ranks):
        rows = Chunk("model.w", "F32", (2, 3), "model.w", (2 * rank, 0), (2 * ranks, 3))
        own = whole_chunk(f"loss@{rank}" if rank else "loss", "F64", ())
        files = {"model": _file(rows, struct.pack("<6f", *[step] * 6)), "opt": _file(own, struct.pack("<d", step))}
        writer.write_shard(target, rank, files, json.dumps(common).encode())
        for fd in files.values():
            os.close(fd)
    return writer.commit(target)[0]


def empty(directory: Path, step: int) -> Path:
    """Make the folder of a checkpoint of ours of which only the mark is left."""
    path = layout.iteration_dir(directory, step)
    path.mkdir(parents=True, exist_ok=True)
    (path / layout.MARK).touch()
    return path


def mindspore(directory: Path, step: int, ranks: int = 2) -> Path:
    """Write a checkpoint and the tracker file as MindSpore Transformers does (Checkpoint 2.0)."""
    path = layout.iteration_dir(directory, step)
    path.mkdir(parents=True)
    (path / layout.METADATA).write_text(json.dumps({"state_dict_metadata": {}, "storage_data": {}}, indent=4))
    (path / layout.COMMON).write_text(json.dumps({"step_num": step, "epoch_num": 1, "global_step": step}))
    for rank in range(ranks):
        for group in layout.GROUPS:
            (path / layout.shard_name("net", group, rank, ranks)).write_bytes(b"theirs")
    (directory / layout.TRACKER).write_text(str(step))
    return path


def content_of(directory: Path) -> dict[str, bytes]:
    """Return the content of every file below a directory, by relative path."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def _file(chunk: Chunk, data: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, tensor_file.build_header([chunk])[0] + data)
    return fd


def flip_a_bit(iteration: Path) -> Path:
    """Flip a bit in a tensor file of a checkpoint, without changing the size; return the path of the file."""
    victim = sorted(iteration.glob("*.safetensors"))[0]
    data = bytearray(victim.read_bytes())
    data[-3] ^= 1
    victim.write_bytes(data)
    return victim


def steps(directory: Path) -> list[int]:
    """Return the steps of the committed checkpoints, newest first."""
    return [step for step, _ in layout.list_iterations(directory)]


def reseal(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change metadata.json, and update the checksum of the file itself."""
    metadata = json.loads((directory / layout.METADATA).read_bytes())
    change(metadata)
    (directory / layout.METADATA).write_bytes(verify.seal(metadata))


def put(directory: Path, name: str, data: bytes) -> None:
    """Replace a file of a checkpoint, and update its size and checksum."""
    (directory / name).write_bytes(data)
    entry = {"bytes": len(data), checksums.NAME: checksums.of_bytes(data)}
    reseal(directory, lambda metadata: metadata["files"].update({name: entry}))


def refused(root: Path) -> str:
    """Return why the checkpoint of step 2 is refused.

    Everything else that belongs to a refusal is checked: quarantine, its file with the reason, the older checkpoint.
    """
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
