"""A StorageWriter of torch.distributed.checkpoint that writes our checkpoints."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    Metadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ftlaunch_contract.checkpoint import layout, tensor_file, writer
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.kernel_files import memory_file
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.storage.dcp_reader import VALUES
from ftlaunch_hooks.tensors import json_codec as coding
from ftlaunch_hooks.tensors.dtypes import DTYPES
from ftlaunch_hooks.tensors.json_codec import Json, StateError, encode, show
from ftlaunch_hooks.tensors.mapped import tensor_over

_OPTIMIZERS = ("opt", "optim", "optimizer")  # first part of the keys that go to the `opt` files


class CheckpointStorageWriter(StorageWriter):
    """Writes and commits a checkpoint: `dcp.save(state, storage_writer=CheckpointStorageWriter(path, 120))`.

    All of it or, after a crash at any point, nothing. Keys whose first part is `opt`, `optim` or `optimizer`
    go to the optimizer's files, all others to the model's.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        step: int,
        *,
        prefix: str = "dcp",
        consumed_samples: int = 0,
    ) -> None:
        """prefix: of the files' names. consumed_samples: over all ranks, for whoever resumes from it."""
        self._checkpoint_dir, self._step, self._prefix = Path(checkpoint_dir), step, prefix
        self._consumed = consumed_samples

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageWriter; checkpoint_id is a checkpoint directory, to be used from here on."""
        if checkpoint_id is not None:
            self._checkpoint_dir = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See StorageWriter."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """See StorageWriter."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """See StorageWriter. Raises OSError."""
        writer.prepare(self._target(len(plans)))
        places = [{"rank": rank, "world_size": len(plans)} for rank in range(len(plans))]
        return [replace(plan, storage_data=place) for plan, place in zip(plans, places, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """See StorageWriter. Raises OSError, and StateError for a value that is neither tensor nor JSON."""
        if not isinstance(planner, DefaultSavePlanner):
            raise TypeError("cannot save: the planner is not a DefaultSavePlanner, its values come pickled")
        values: dict[str, Json] = {}
        tensors: dict[str, dict[Chunk, Tensor]] = {group: {} for group in layout.GROUPS}
        names: dict[str, set[str]] = {group: set() for group in layout.GROUPS}
        results = []
        for item in plan.items:
            key = item.index.fqn
            if item.type is WriteItemType.BYTE_IO:
                values[key] = encode(planner.lookup_object(item.index), (key,), _refuse_tensor)
            else:
                group = "opt" if key.split(".")[0] in _OPTIMIZERS else "model"
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, Tensor)
                tensors[group][_chunk_of(item, names[group])] = tensor.detach()
            results.append(WriteResult(item.index, item.tensor_storage_size() or 0, None))
        with contextlib.ExitStack() as stack:
            files = {group: stack.enter_context(_image(chunks)) for group, chunks in tensors.items()}
            rank, world_size = plan.storage_data["rank"], plan.storage_data["world_size"]
            writer.write_shard(self._target(world_size), rank, files, self._common(values))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """See StorageWriter: commits. Raises OSError."""
        writer.commit(self._target(len(results)))

    def _target(self, world_size: int) -> writer.SaveTarget:
        why = Why.REQUEST.name.lower()
        return writer.SaveTarget(self._checkpoint_dir, self._step, why, self._prefix, world_size)

    def _common(self, values: Mapping[str, Json]) -> bytes:
        common = {
            "step": self._step,
            "consumed_samples": self._consumed,
            "versions": {"torch": torch.__version__},
            "state": {VALUES: values},
        }
        return json.dumps(common, allow_nan=False).encode()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """See StorageWriter."""
        return True


def _refuse_tensor(path: coding.Path, tensor: Tensor) -> str:
    raise StateError(f"cannot save `{show(path)}`: a tensor inside a value that is not a dictionary or list")


def _chunk_of(item: WriteItem, taken: set[str]) -> Chunk:
    """The chunk that a write is about; under its tensor's key, unless another chunk of this file has that."""
    assert item.tensor_data is not None
    chunk, whole = item.tensor_data.chunk, tuple(item.tensor_data.size)
    offset, shape, key = tuple(chunk.offsets), tuple(chunk.sizes), item.index.fqn
    name = f"{key}[{','.join(map(str, offset))}]" if key in taken else key
    taken.add(name)
    return Chunk(name, DTYPES[item.tensor_data.properties.dtype], shape, key, offset, whole)


@contextlib.contextmanager
def _image(tensors: Mapping[Chunk, Tensor]) -> Iterator[int]:
    """A descriptor of a safetensors file with these tensors, in memory."""
    chunks = tensor_file.file_order(tensors)
    header, offsets = tensor_file.build_header(chunks)
    fd = memory_file("checkpoint")
    try:
        atomic.write_all(fd, header)
        if chunks:
            os.ftruncate(fd, offsets[-1] + chunks[-1].nbytes)
            mapped = mmap.mmap(fd, offsets[-1] + chunks[-1].nbytes)
            for chunk, offset in zip(chunks, offsets, strict=True):
                tensor_over(mapped, chunk, offset).copy_(tensors[chunk])
        yield fd
    finally:
        os.close(fd)
