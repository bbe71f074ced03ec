"""How other monitors call a node and its GPUs: by these names DCGM's figures are joined with those of ranks."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLES = ("CUDA_VISIBLE_DEVICES", "NODE_NAME", "POD_NAME", "POD_NAMESPACE")
"""by which a node and its GPUs are known"""
_NUMBER = re.compile(r"[0-9]+")
_UUID = re.compile(r"^GPU UUID:\s+(GPU-[0-9a-fA-F-]+)$", re.MULTILINE)
_LONGEST, _MOST_GPUS = 253, 1024


@dataclass(frozen=True)
class DeviceNames:
    """Of one node; a name is empty where it is not known."""

    host: str
    node: str
    """of Kubernetes: NODE_NAME in the environment"""
    pod: str
    """POD_NAME"""
    namespace: str
    """POD_NAMESPACE"""
    gpus: tuple[str, ...]
    """UUIDs, in the order in which local ranks take GPUs"""

    def gpu(self, local_rank: int) -> str:
        """The UUID of the GPU that a rank of the node has, if it takes that of its number; empty: it is not known."""
        return self.gpus[local_rank] if local_rank < len(self.gpus) else ""

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return asdict(self)


def gather_names(environ: Mapping[str, str], root: Path = Path("/")) -> DeviceNames:
    """Return the names of this node. root: of the file system, in which the driver lists its GPUs."""
    return DeviceNames(
        host=socket.gethostname(),
        node=environ.get("NODE_NAME", ""),
        pod=environ.get("POD_NAME", ""),
        namespace=environ.get("POD_NAMESPACE", ""),
        gpus=_visible(environ.get("CUDA_VISIBLE_DEVICES"), _listed(root / "proc/driver/nvidia/gpus")),
    )


def read_names(told: object) -> DeviceNames:
    """Return the names that a node has sent; one that is no text, or too long, counts as not known."""
    fields = told if isinstance(told, dict) else {}
    gpus = fields.get("gpus")
    return DeviceNames(
        **{name: _text(fields.get(name)) for name in ("host", "node", "pod", "namespace")},
        gpus=tuple(map(_text, gpus[:_MOST_GPUS])) if isinstance(gpus, (list, tuple)) else (),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST else ""


def _listed(folder: Path) -> list[str]:
    """The UUIDs of all GPUs, in the order of their places on the bus, as nvidia-smi numbers them."""
    try:
        places = sorted(folder.iterdir())
        found = [_UUID.search((place / "information").read_text(errors="replace")) for place in places]
    except OSError:
        return []
    return [match[1] if match else "" for match in found]


def _visible(asked: str | None, listed: list[str]) -> tuple[str, ...]:
    """The UUIDs of those that CUDA_VISIBLE_DEVICES names; CUDA, too, stops at the first entry that names none."""
    if asked is None:
        return tuple(listed)
    found: list[str] = []
    for entry in map(str.strip, asked.split(",")):
        if _NUMBER.fullmatch(entry):
            if int(entry) >= len(listed):
                break
            found.append(listed[int(entry)])
        elif entry.startswith(("GPU-", "MIG-")):
            found.append(next((uuid for uuid in listed if uuid.startswith(entry)), entry))
        else:
            break
    return tuple(found)
