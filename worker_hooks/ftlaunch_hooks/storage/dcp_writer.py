"""A StorageWriter of torch.distributed.checkpoint that writes checkpoints in our layout, for scripts that use dcp.save.

Each rank writes its shard; the coordinator commits. Runs in the script's process, without snapshots or a saver.
"""

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

_OPTIMIZERS = ("opt", "optim", "optimizer")  # first parts of keys whose tensors go to the `opt` files


class CheckpointStorageWriter(StorageWriter):
    """Writes and commits a checkpoint: `dcp.save(state, storage_writer=CheckpointStorageWriter(path, 120))`.

    After a crash at any point the checkpoint is there as a whole, or not at all. Keys whose first part is `opt`,
    `optim` or `optimizer` go to the optimizer's files, all others to the model's.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        step: int,
        *,
        prefix: str = "dcp",
        consumed_samples: int = 0,
    ) -> None:
        """Take what the checkpoint is to be called.

        Args:
            checkpoint_dir: the directory in which the checkpoint is made.
            step: the checkpoint's step.
            prefix: first part of the files' names.
            consumed_samples: samples consumed over all ranks, for a run that resumes from the checkpoint.
        """
        self._checkpoint_dir = Path(checkpoint_dir)
        self._step = step
        self._prefix = prefix
        self._consumed = consumed_samples

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Use `checkpoint_id` as the checkpoint directory from now on, if it is given."""
        if checkpoint_id is not None:
            self._checkpoint_dir = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: writing needs no preparation."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the checkpoint's directory, and tell each rank its number and the number of ranks. Raises OSError."""
        writer.prepare(self._target(len(plans)))
        places = [{"rank": rank, "world_size": len(plans)} for rank in range(len(plans))]
        return [replace(plan, storage_data=place) for plan, place in zip(plans, places, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shard before returning; the future is done already.

        Raises:
            OSError: the shard cannot be written.
            StateError: a value is neither a tensor nor JSON.
            TypeError: the planner pickles values.
        """
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
            target = self._target(plan.storage_data["world_size"])
            writer.write_shard(target, plan.storage_data["rank"], files=files, common=self._common(values))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit the checkpoint. Called by the coordinator once all ranks have written. Raises OSError."""
        writer.commit(self._target(len(results)))

    def _target(self, world_size: int) -> writer.SaveTarget:
        return writer.SaveTarget(
            checkpoint_dir=self._checkpoint_dir,
            step=self._step,
            why=Why.REQUEST.name.lower(),
            prefix=self._prefix,
            world_size=world_size,
        )

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
        """Accept any path: the directory is made where it is missing."""
        return True


def _refuse_tensor(path: coding.Path, tensor: Tensor) -> str:
    raise StateError(f"cannot save `{show(path)}`: a tensor inside a value that is not a dictionary or list")


def _chunk_of(item: WriteItem, used_names: set[str]) -> Chunk:
    """Return the chunk that a write item describes.

    The chunk is named by its tensor's key, unless another chunk of the same file (`used_names`) has that name.
    """
    assert item.tensor_data is not None
    key = item.index.fqn
    offset = tuple(item.tensor_data.chunk.offsets)
    name = f"{key}[{','.join(map(str, offset))}]" if key in used_names else key
    used_names.add(name)
    return Chunk(
        name=name,
        dtype=DTYPES[item.tensor_data.properties.dtype],
        shape=tuple(item.tensor_data.chunk.sizes),
        key=key,
        offset=offset,
        whole=tuple(item.tensor_data.size),
    )


@contextlib.contextmanager
def _image(tensors: Mapping[Chunk, Tensor]) -> Iterator[int]:
    """Make a safetensors file with these tensors in memory, and give its descriptor."""
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
