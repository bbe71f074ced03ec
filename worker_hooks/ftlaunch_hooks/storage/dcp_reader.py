"""Our checkpoints as torch.distributed.checkpoint's storage: `dcp.save` and `dcp.load` read and write them.

Whatever its planners can shard and reshard (DTensor, FSDP2, tensor parallel, another number of ranks) works
without any resharding of our own. Values that are not tensors are saved as JSON (`json_codec.py`), not pickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ftlaunch_contract.checkpoint import layout, writer
from ftlaunch_contract.checkpoint.layout import Chunk
from ftlaunch_contract.files import atomic
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.state.collector import DTYPES
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, SavedTensors, tensor_over
from ftlaunch_hooks.tensors import json_codec as coding
from ftlaunch_hooks.tensors.json_codec import Json, StateError, decode, encode, show

_VALUES = "dcp"  # in common.json's state: what is not a tensor, by key
_OPTIMIZERS = ("opt", "optim", "optimizer")  # first part of the keys that go to the `opt` files


# --- reading ----------------------------------------------------------------------------------------------


class ShardsStorageReader(StorageReader):
    """Gives torch.distributed.checkpoint what `Shards` hold."""

    def __init__(self, shards: SavedTensors) -> None:
        self._shards = shards

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageReader."""

    def _values(self) -> dict[str, Json]:
        values: dict[str, Json] = {}
        for rank in range(self._shards.world_size):
            values |= self._shards.state(rank).get(_VALUES, {})
        return values

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """See StorageReader."""
        metadata = self.tensor_metadata(self._shards.keys())
        metadata.state_dict_metadata.update({key: BytesStorageMetadata() for key in self._values()})
        return metadata

    def tensor_metadata(self, keys: Iterable[str]) -> Metadata:
        """Metadata of these tensors only. Raises KeyError."""
        return Metadata({key: self._tensor_metadata(key) for key in keys})

    def _tensor_metadata(self, key: str) -> TensorStorageMetadata:
        dtype, whole = self._shards.info(key)
        chunks = [
            ChunkStorageMetadata(torch.Size(piece.chunk.offset), torch.Size(piece.chunk.shape))
            for piece in self._shards.pieces(key)
        ]
        return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(whole), chunks)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See StorageReader."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """See StorageReader."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """See StorageReader."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """See StorageReader."""
        values = self._values()
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                value = io.BytesIO()  # only in memory: what the planner's load_bytes takes
                torch.save(decode(values[item.storage_index.fqn], _no_tensor), value)
                value.seek(0)
                planner.load_bytes(item, value)
            else:
                target = planner.resolve_tensor(item).detach()
                target.copy_(self._part(item))
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _part(self, item: ReadItem) -> Tensor:
        """The block of a saved chunk that a read is about."""
        pieces = self._shards.pieces(item.storage_index.fqn)
        offset = item.storage_index.offset
        part = next(p for p in pieces if offset is None or p.chunk.offset == tuple(offset)).tensor()
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            part = part.narrow(dim, start, length)
        return part

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """See StorageReader."""
        return Path(checkpoint_id).is_dir()


class CheckpointStorageReader(ShardsStorageReader):
    """Reads a committed checkpoint: `dcp.load(state_dict, storage_reader=CheckpointStorageReader(path))`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """directory: `<checkpoint-dir>/iteration_<step>`. Raises OSError, or layout.Damaged."""
        super().__init__(CheckpointReader(Path(directory)))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageReader."""
        if checkpoint_id is not None:
            self._shards = CheckpointReader(Path(checkpoint_id))


def read_planned(shards: SavedTensors, wanted: dict[str, Tensor]) -> None:
    """Fill plain tensors and DTensors from shards of whatever shape. Every rank reads for itself."""
    reader, planner = ShardsStorageReader(shards), DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(wanted), reader.tensor_metadata(wanted), is_coordinator=True)
    [plan] = planner.create_global_plan([planner.create_local_plan()])
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _no_tensor(key: str, device: str) -> Tensor:
    raise StateError(f"cannot restore `{key}`: a tensor among values that are not tensors")


# --- writing ----------------------------------------------------------------------------------------------


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
            "state": {_VALUES: values},
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
    chunks = layout.file_order(tensors)
    header, offsets = layout.build_header(chunks)
    fd = os.memfd_create("ftlaunch-checkpoint", os.MFD_CLOEXEC)
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
