"""Reads folders that Hugging Face's libraries write: safetensors or torch files, one file or several with an index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files import untrusted_json
from ftlaunch_contract.foreign_formats import HF_NAMES, INDEX
from ftlaunch_hooks.storage.foreign.sources import piece
from ftlaunch_hooks.storage.foreign.torch_files import pieces_of_file
from ftlaunch_hooks.storage.saved_tensors import SavedChunk
from ftlaunch_hooks.tensors.mapped import MappedFile

Pieces = dict[str, list[SavedChunk]]


def pieces_of_safetensors(path: Path) -> Pieces:
    """Return the tensors of one safetensors file, mapped. Raises OSError, Damaged."""
    file = MappedFile(path)
    return {
        chunk.name: [piece(chunk, lambda chunk=chunk, offset=offset: file.tensor(chunk, offset))]  # type: ignore[misc]
        for chunk, offset in zip(file.chunks, file.offsets, strict=True)
    }


def pieces_of_folder(folder: Path) -> Pieces:
    """Return the tensors of all files of weights in a folder. Raises OSError, Damaged."""
    for name in HF_NAMES:
        read = pieces_of_safetensors if name.endswith(".safetensors") else pieces_of_file
        if (folder / name).is_file():
            return read(folder / name)
        if (index := folder / f"{name}{INDEX}").is_file():
            return _of_parts(index, read)
    raise Damaged(f"there is none of {', '.join(HF_NAMES)}")


def _of_parts(index: Path, read: Callable[[Path], Pieces]) -> Pieces:
    """Return every tensor from the file that the index names for it. Raises OSError, Damaged."""
    try:
        content = untrusted_json.mapping(untrusted_json.parse(index.read_bytes()), "it")
        files = untrusted_json.mapping(content.get("weight_map"), "`weight_map`")
        by_file: dict[str, list[str]] = {}
        for key, name in files.items():
            by_file.setdefault(untrusted_json.text(name, f"the file of {key}"), []).append(key)
    except ValueError as error:
        raise Damaged(f"{index.name} cannot be read ({error})") from error
    found: Pieces = {}
    for name, keys in by_file.items():
        if Path(name).name != name:
            raise Damaged(f"{index.name} names {name!r}, which is not in the folder")
        part = read(index.parent / name)
        if lacking := sorted(set(keys) - part.keys()):
            raise Damaged(f"{name} has no {lacking[0]}, which {index.name} says it has")
        found |= {key: part[key] for key in keys}
    return found
