"""Checkpoints made by the real rooms that make them, without torch."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from ftlaunch_contract.checkpoint import layout, tensor_file, writer
from ftlaunch_contract.checkpoint.tensor_file import Chunk, whole_chunk


def checkpoint(directory: Path, step: int, ranks: int = 1, why: str = "interval") -> Path:
    """Commit a checkpoint in which every rank has two rows of `model.w`, all holding the step."""
    target = writer.SaveTarget(directory, step, why, "net", ranks)
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


def _file(chunk: Chunk, data: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, tensor_file.build_header([chunk])[0] + data)
    return fd


def flip_a_bit(iteration: Path) -> Path:
    """Damage one tensor file of a checkpoint, its size unchanged."""
    victim = sorted(iteration.glob("*.safetensors"))[0]
    data = bytearray(victim.read_bytes())
    data[-3] ^= 1
    victim.write_bytes(data)
    return victim


def steps(directory: Path) -> list[int]:
    """Steps of the committed checkpoints, newest first."""
    return [step for step, _ in layout.list_iterations(directory)]
