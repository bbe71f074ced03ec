"""Reads folders of torch.distributed.checkpoint, which Megatron-core's `torch_dist` checkpoints are, too.

The index, `.metadata`, is a pickle. An unpickler reads it that makes only records defined here and dtypes: whatever the
file names, nothing of it is called.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint.metadata import check_part
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged
from ftlaunch_contract.files import untrusted_json
from ftlaunch_contract.foreign_formats import DCP_INDEX
from ftlaunch_hooks.storage.foreign.sources import piece
from ftlaunch_hooks.storage.saved_tensors import SavedChunk
from ftlaunch_hooks.tensors.dtypes import DTYPES


class _Record(SimpleNamespace):
    """A record of the index: the name of its class is dropped, its fields are kept."""

    def __init__(self, *values: object) -> None:
        super().__init__(values=values)

    def __setstate__(self, state: object) -> None:
        if isinstance(state, Mapping):
            self.__dict__.update({str(name): value for name, value in state.items()})
        else:
            self.values = state

    __hash__ = object.__hash__  # type: ignore[assignment]


class _Tensor(_Record):
    """What the index says of a tensor."""


class _Index(_Record):
    """The key of a stored part: a name, and where the part begins."""

    fqn: str
    offset: tuple[int, ...] | None = None


class _Properties(_Record):
    """The dtype and other properties of a tensor."""


def _sizes(values: tuple[int, ...] = ()) -> tuple[int, ...]:
    return tuple(values)


def _words(*values: str) -> str:
    return "/".join(map(str, values))


def _member(owner: object, name: str) -> _Record:
    """Take the place of getattr, with which some versions of Python pickle enumeration members.

    Nothing is looked up.
    """
    return _Record(name)


_METADATA = "torch.distributed.checkpoint.metadata"
# (module, name) in the pickle -> what is made instead
_SUBSTITUTES: Mapping[tuple[str, str], Callable[..., object]] = {
    (_METADATA, "Metadata"): _Record,
    (_METADATA, "StorageMeta"): _Record,
    (_METADATA, "ChunkStorageMetadata"): _Record,
    (_METADATA, "BytesStorageMetadata"): _Record,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _Record,
    (_METADATA, "TensorStorageMetadata"): _Tensor,
    (_METADATA, "TensorProperties"): _Properties,
    (_METADATA, "MetadataIndex"): _Index,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _Record,
    ("builtins", "getattr"): _member,
    ("torch", "Size"): _sizes,
    ("torch.serialization", "_get_layout"): _words,
    ("collections", "OrderedDict"): dict,
    ("pathlib", "Path"): _words,
    ("pathlib", "PosixPath"): _words,
    ("pathlib._local", "PosixPath"): _words,  # the name in Python 3.13; older and newer ones say pathlib
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a dtype, or what stands for a class of the index. Raises UnpicklingError for everything else."""
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        if (substitute := _SUBSTITUTES.get((module, name))) is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return substitute


def pieces_of_dcp(folder: Path) -> dict[str, list[SavedChunk]]:
    """Return the parts of each tensor by key; they are read from their files when wanted. Raises OSError, Damaged."""
    try:
        index = _IndexUnpickler(io.BytesIO((folder / DCP_INDEX).read_bytes())).load()
        stored = {(at.fqn, tuple(at.offset or ())): info for at, info in index.storage_data.items()}
        tensors = {key: entry for key, entry in index.state_dict_metadata.items() if isinstance(entry, _Tensor)}
        return {key: _pieces(folder, key, entry=entry, stored=stored) for key, entry in tensors.items()}
    except (pickle.UnpicklingError, AttributeError, TypeError, ValueError, IndexError, KeyError, EOFError) as error:
        raise Damaged(f"its {DCP_INDEX} cannot be read ({type(error).__name__}: {error})") from error


def _pieces(folder: Path, key: str, entry: Any, stored: Mapping[tuple[str, tuple[int, ...]], Any]) -> list[SavedChunk]:
    """Return the parts of a tensor. entry: what the index says of it. stored: (key, offset) -> where a part lies."""
    dtype = DTYPES.get(entry.properties.values[0])
    if dtype is None:
        raise ValueError(f"the type of {key} is not known")
    whole = untrusted_json.extents(list(entry.size), f"the size of {key}")
    found = []
    for part in entry.chunks:
        offset = untrusted_json.extents(list(part.offsets), f"an offset of {key}")
        shape = untrusted_json.extents(list(part.sizes), f"the size of a part of {key}")
        check_part(offset=offset, shape=shape, whole_shape=whole, what=key)
        info = stored[key, offset]
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"{key} is stored compressed, which is not read")
        chunk = Chunk(name=key, dtype=dtype, shape=shape, key=key, offset=offset, whole=whole)
        found.append(piece(chunk, _reader(folder, info)))
    return found


def _reader(folder: Path, info: Any) -> Callable[[], Tensor]:
    """Return a function that reads a stored part from its file and raises OSError or Damaged.

    info: where the part lies.
    """
    name = str(info.relative_path)
    offset = int(info.offset)
    length = int(info.length)
    if Path(name).name != name:
        raise ValueError(f"it names the file {name!r}, which is not in the folder")

    def read() -> Tensor:
        with (folder / name).open("rb") as file:
            file.seek(offset)
            content = io.BytesIO(file.read(length))
        try:
            tensor = torch.load(content, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise Damaged(f"a part in {name} cannot be read ({str(error).splitlines()[0][:200]})") from error
        if not isinstance(tensor, Tensor):
            raise Damaged(f"a part in {name} is no tensor")
        return tensor

    return read
