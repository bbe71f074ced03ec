"""Writes the weights of one module of a checkpoint for other programs; `ftctl checkpoints export` runs it.

    python -m ftlaunch_hooks.storage.export CHECKPOINT OBJECT FORMAT TARGET

FORMAT: `hf` (a folder with model.safetensors, or several and their index), `torch` (a file for torch.load), `dcp` (a
folder for torch.distributed.checkpoint). The checkpoint is verified before. TARGET appears whole or not at all.
Says on stdout `bytes N`, how many are to be read and written, `done N` for each piece of these, and then a sentence.
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
_LARGEST_FILE = 5_000_000_000  # bytes, as Hugging Face's libraries cut


def weights(checkpoint: Path, name: str, begins: Callable[[int], Advance]) -> dict[str, Tensor]:
    """Name in the module's state_dict() -> tensor, whole. Raises StateError, OSError, Damaged.

    begins: is told how many bytes will be read, and gives what is told of those that are.
    """
    saved = CheckpointReader(checkpoint)
    states = [saved.state(rank) for rank in range(saved.world_size)]
    modules = sorted({one for state in states for one, tree in state.items() if _is_module(tree)})
    if name not in modules:
        raise StateError(f"it holds no module `{name}`; it holds {', '.join(modules) or 'none'}")
    listed = [state[name]["tensors"] if name in state else [] for state in states]
    keys = {one: f"{name}.{one}".replace("@", "@@") for one in dict.fromkeys(one for names in listed for one in names)}
    check_alike(f"module `{name}`", saved, [{keys[one] for one in names} for names in listed if names], 1)
    known = Lookup(saved, 0, 0)
    infos = [known.info(key) for key in keys.values()]
    lookup = Lookup(saved, 0, 0, begins(sum(dtype.itemsize * prod(shape) for dtype, shape in infos)))
    return {one: lookup.get(key, "cpu") for one, key in keys.items()}


def _is_module(tree: object) -> bool:
    return isinstance(tree, dict) and tree.get("kind") == "module"


# --- formats ---------------------------------------------------------------------------------------------------


def _to_hf(tensors: Tensors, target: Path) -> None:
    """Raises StateError where safetensors is not installed."""
    try:
        from safetensors.torch import save_file  # noqa: PLC0415 - only this format needs it
    except ImportError:
        raise StateError("the package safetensors is not installed, which writes this format") from None
    target.mkdir()
    parts = list(_parts(tensors))
    index: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = "model.safetensors" if len(parts) == 1 else f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        save_file({one: tensor.contiguous() for one, tensor in part.items()}, target / file, {"format": "pt"})
        index |= dict.fromkeys(part, file)
    if len(parts) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        told = {"metadata": {"total_size": size}, "weight_map": index}
        (target / "model.safetensors.index.json").write_text(json.dumps(told, indent=2) + "\n")


def _parts(tensors: Tensors) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    for one, tensor in tensors.items():
        if part and sum(other.nbytes for other in part.values()) + tensor.nbytes > _LARGEST_FILE:
            yield part
            part = {}
        part[one] = tensor
    yield part


def _to_torch(tensors: Tensors, target: Path) -> None:
    torch.save(dict(tensors), target)


def _to_dcp(tensors: Tensors, target: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - it takes a second

    save(dict(tensors), checkpoint_id=target, no_dist=True)


FORMATS: Mapping[str, Callable[[Tensors, Path], None]] = {"hf": _to_hf, "torch": _to_torch, "dcp": _to_dcp}


def export(checkpoint: Path, name: str, to: str, target: Path) -> int:
    """Write; returns the number of tensors. Raises StateError, OSError, Damaged."""
    if target.exists():
        raise FileExistsError(0, "it is there already", str(target))
    tensors = weights(checkpoint, name, _begins)
    new = target.with_name(f".{target.name}.incomplete")
    if new.is_dir():
        shutil.rmtree(new)
    FORMATS[to](tensors, new)
    _tell("done", sum(tensor.nbytes for tensor in tensors.values()))
    new.rename(target)
    return len(tensors)


def _begins(size: int) -> Advance:
    """So many bytes will be read, and then written."""
    _tell("bytes", 2 * size)
    return partial(_tell, "done")


def _tell(what: str, count: int) -> None:
    """Tell the program that has started this one."""
    sys.stdout.write(f"{what} {count}\n")
    sys.stdout.flush()


def main() -> int:
    """Returns the exit code."""
    checkpoint, name, to, target = sys.argv[1:]
    try:
        count = export(Path(checkpoint), name, to, Path(target))
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
