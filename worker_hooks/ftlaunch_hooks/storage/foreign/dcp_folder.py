"""Folders of torch.distributed.checkpoint, which Megatron-core's `torch_dist` checkpoints are, too.

The index, `.metadata`, is a pickle. It is read by an unpickler that makes records of ours and nothing else: whatever
the file names, nothing of it is called.
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
    """A record of the index: its class's name is forgotten, its fields are kept."""

    def __init__(self, *values: object) -> None:
        super().__init__(values=values)

    def __setstate__(self, state: object) -> None:
        if isinstance(state, Mapping):
            self.__dict__.update({str(name): value for name, value in state.items()})
        else:
            self.values = state

    __hash__ = object.__hash__  # type: ignore[assignment]


class _Tensor(_Record): ...


class _Index(_Record):
    """The key of a stored part: a name, and where the part begins."""

    fqn: str
    offset: tuple[int, ...] | None = None


class _Properties(_Record): ...


def _sizes(values: tuple[int, ...] = ()) -> tuple[int, ...]:
    return tuple(values)


def _words(*values: str) -> str:
    return "/".join(map(str, values))


def _member(owner: object, name: str) -> _Record:
    """In the place of getattr, by which some versions of Python pickle members of enumerations: it looks up nothing."""
    return _Record(name)


_METADATA = "torch.distributed.checkpoint.metadata"
_MADE: Mapping[tuple[str, str], Callable[..., object]] = {
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
    ("pathlib._local", "PosixPath"): _words,  # as Python 3.13 names it; older and newer ones say pathlib
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Records of ours, and dtypes. Raises UnpicklingError for everything else."""
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        if (made := _MADE.get((module, name))) is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return made


def pieces_of_dcp(folder: Path) -> dict[str, list[SavedChunk]]:
    """Key -> the parts of the tensor, to be read from their files when they are wanted. Raises OSError, Damaged."""
    try:
        index = _IndexUnpickler(io.BytesIO((folder / DCP_INDEX).read_bytes())).load()
        stored = {(at.fqn, tuple(at.offset or ())): info for at, info in index.storage_data.items()}
        tensors = {key: told for key, told in index.state_dict_metadata.items() if isinstance(told, _Tensor)}
        return {key: _pieces(folder, key, told, stored) for key, told in tensors.items()}
    except (pickle.UnpicklingError, AttributeError, TypeError, ValueError, IndexError, KeyError, EOFError) as error:
        raise Damaged(f"its {DCP_INDEX} cannot be read ({type(error).__name__}: {error})") from error


def _pieces(folder: Path, key: str, told: Any, stored: Mapping[tuple[str, tuple[int, ...]], Any]) -> list[SavedChunk]:
    dtype = DTYPES.get(told.properties.values[0])
    if dtype is None:
        raise ValueError(f"the type of {key} is not known")
    whole = untrusted_json.extents(list(told.size), f"the size of {key}")
    found = []
    for part in told.chunks:
        offset = untrusted_json.extents(list(part.offsets), f"an offset of {key}")
        shape = untrusted_json.extents(list(part.sizes), f"the size of a part of {key}")
        check_part(offset, shape, whole, key)
        info = stored[key, offset]
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"{key} is stored compressed, which is not read")
        found.append(piece(Chunk(key, dtype, shape, key, offset, whole), _reader(folder, info)))
    return found


def _reader(folder: Path, info: Any) -> Callable[[], Tensor]:
    name, offset, length = str(info.relative_path), int(info.offset), int(info.length)
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
