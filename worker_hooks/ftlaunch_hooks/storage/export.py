"""Writes the weights of one module of a checkpoint for other programs; `ftctl checkpoints export` runs this program.

    python -m ftlaunch_hooks.storage.export CHECKPOINT OBJECT FORMAT TARGET

FORMAT: `hf` (a folder with model.safetensors, or several files and their index), `torch` (a file for torch.load), `dcp`
(a folder for torch.distributed.checkpoint). The caller verifies the checkpoint before. TARGET appears whole or not at
all. Stdout gets a line `bytes N` with the number of bytes to be read and written, a line `done N` for each piece of
these, and at the end a sentence.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.progress import Advance
from ftlaunch_hooks.storage.own_copies import check_alike
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader
from ftlaunch_hooks.tensors.json_codec import StateError

Tensors = Mapping[str, Tensor]
_LARGEST_FILE = 5_000_000_000  # bytes, the limit of Hugging Face's libraries


def weights(checkpoint: Path, name: str, begins: Callable[[int], Advance]) -> dict[str, Tensor]:
    """Return the whole tensors of one module, by their names in the module's state_dict().

    Args:
        checkpoint: the checkpoint's directory.
        name: the name under which the module was attached.
        begins: called with the number of bytes that will be read; returns what is told of the bytes that were read.

    Raises:
        StateError: there is no such module, or ranks have saved different copies of it.
        Damaged: the checkpoint is damaged.
        OSError: the checkpoint cannot be read.
    """
    saved = CheckpointReader(checkpoint)
    states = [saved.state(rank) for rank in range(saved.world_size)]
    modules = sorted({part for state in states for part, tree in state.items() if _is_module(tree)})
    if name not in modules:
        raise StateError(f"it holds no module `{name}`; it holds {', '.join(modules) or 'none'}")
    names_by_rank = [state[name]["tensors"] if name in state else [] for state in states]
    keys: dict[str, str] = {}
    for names in names_by_rank:
        for tensor_name in names:
            keys[tensor_name] = f"{name}.{tensor_name}".replace("@", "@@")
    named = [{keys[tensor_name] for tensor_name in names} for names in names_by_rank if names]
    check_alike(f"module `{name}`", saved, named, ranks=1)
    unread = Lookup(saved, 0, 0)
    infos = [unread.info(key) for key in keys.values()]
    size = sum(dtype.itemsize * prod(shape) for dtype, shape in infos)
    lookup = Lookup(saved, 0, 0, advance=begins(size))
    return {tensor_name: lookup.get(key, "cpu") for tensor_name, key in keys.items()}


def _is_module(tree: object) -> bool:
    return isinstance(tree, dict) and tree.get("kind") == "module"


# --- formats ---------------------------------------------------------------------------------------------------


def _to_hf(tensors: Tensors, target: Path) -> None:
    """Write a folder of safetensors files. Raises StateError where safetensors is not installed."""
    try:
        from safetensors.torch import save_file  # noqa: PLC0415 - only this format needs it
    except ImportError:
        raise StateError("the package safetensors is not installed, which writes this format") from None
    target.mkdir()
    parts = list(_parts(tensors))
    index: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = "model.safetensors" if len(parts) == 1 else f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in part.items()}, target / file, {"format": "pt"})
        index |= dict.fromkeys(part, file)
    if len(parts) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        content = {"metadata": {"total_size": size}, "weight_map": index}
        (target / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")


def _parts(tensors: Tensors) -> Iterator[dict[str, Tensor]]:
    """Divide tensors among files of at most `_LARGEST_FILE` bytes, or of one larger tensor."""
    part: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if part and sum(other.nbytes for other in part.values()) + tensor.nbytes > _LARGEST_FILE:
            yield part
            part = {}
        part[name] = tensor
    yield part


def _to_torch(tensors: Tensors, target: Path) -> None:
    torch.save(dict(tensors), target)


def _to_dcp(tensors: Tensors, target: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - it takes a second

    save(dict(tensors), checkpoint_id=target, no_dist=True)


FORMATS: Mapping[str, Callable[[Tensors, Path], None]] = {"hf": _to_hf, "torch": _to_torch, "dcp": _to_dcp}


def export(checkpoint: Path, name: str, to: str, target: Path) -> int:
    """Write the weights of module `name` to `target` in the format `to`; return the number of tensors.

    Raises:
        StateError, Damaged: the weights cannot be exported; the message is for people.
        OSError: `target` exists, or a file cannot be read or written.
    """
    if target.exists():
        raise FileExistsError(0, "it is there already", str(target))
    tensors = weights(checkpoint, name, _announce_size)
    incomplete = target.with_name(f".{target.name}.incomplete")
    if incomplete.is_dir():
        shutil.rmtree(incomplete)
    FORMATS[to](tensors, incomplete)
    _report("done", sum(tensor.nbytes for tensor in tensors.values()))
    incomplete.rename(target)
    return len(tensors)


def _announce_size(size: int) -> Advance:
    """Announce that `size` bytes will be read and then written; return what to call with the bytes that are done."""
    _report("bytes", 2 * size)
    return partial(_report, "done")


def _report(what: str, count: int) -> None:
    """Write a line for the program that has started this one."""
    sys.stdout.write(f"{what} {count}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the program; return its exit code."""
    checkpoint, name, to, target = sys.argv[1:]
    try:
        count = export(Path(checkpoint), name=name, to=to, target=Path(target))
    except (StateError, Damaged) as error:
        sys.stderr.write(f"{error}\n")
    except OSError as error:
        sys.stderr.write(f"{error.filename or target}: {error.strerror}\n")
    else:
        sys.stdout.write(f"wrote {count} tensors of `{name}` to {target}\n")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
