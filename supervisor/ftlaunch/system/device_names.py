"""The names by which other monitors know a node and its GPUs, and which GPU a rank takes.

Dashboards use these names to join the figures of DCGM with those of ranks.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLES = ("CUDA_VISIBLE_DEVICES", "NODE_NAME", "POD_NAME", "POD_NAMESPACE")
"""the environment variables from which the names are made"""
_NUMBER = re.compile(r"[0-9]+")
_UUID = re.compile(r"^GPU UUID:\s+(GPU-[0-9a-fA-F-]+)$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s+([0-9]+)$", re.MULTILINE)
_LONGEST = 253  # characters of a name, as in DNS
_MOST_GPUS = 1024  # GPUs of a node


@dataclass(frozen=True)
class ListedGpu:
    """A GPU; what is unknown is empty."""

    bus_id: str
    """address on the PCI bus, as 0000:3b:00.0"""
    uuid: str


@dataclass(frozen=True)
class DeviceNames:
    """The names of one node and its GPUs; an unknown name is empty."""

    host: str
    """host name"""
    node: str
    """name of the Kubernetes node, from NODE_NAME"""
    pod: str
    """name of the pod, from POD_NAME"""
    namespace: str
    """namespace of the pod, from POD_NAMESPACE"""
    gpus: tuple[str, ...]
    """UUIDs of the GPUs, in the order in which local ranks take them"""

    def gpu(self, local_rank: int) -> str:
        """Return the UUID of the GPU with a local rank's number; empty if unknown."""
        return self.gpus[local_rank] if local_rank < len(self.gpus) else ""

    def as_dict(self) -> dict[str, object]:
        """Return the names as JSON fields."""
        return asdict(self)


def gather_names(environ: Mapping[str, str], root: Path = Path("/")) -> DeviceNames:
    """Return the names of this node.

    Args:
        environ: environment of this process.
        root: root of the file system in which the driver lists its GPUs.
    """
    return DeviceNames(
        host=socket.gethostname(),
        node=environ.get("NODE_NAME", ""),
        pod=environ.get("POD_NAME", ""),
        namespace=environ.get("POD_NAMESPACE", ""),
        gpus=tuple(gpu.uuid for gpu in visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"), root)),
    )


def read_names(reply: object) -> DeviceNames:
    """Return the names that a node has sent. A name that is no text, or is too long, counts as unknown.

    Args:
        reply: the JSON value that was received, which may be anything.
    """
    fields = reply if isinstance(reply, dict) else {}
    gpus = fields.get("gpus")
    return DeviceNames(
        host=_text(fields.get("host")),
        node=_text(fields.get("node")),
        pod=_text(fields.get("pod")),
        namespace=_text(fields.get("namespace")),
        gpus=tuple(map(_text, gpus[:_MOST_GPUS])) if isinstance(gpus, (list, tuple)) else (),
    )


def _text(value: object) -> str:
    """Return the value if it is a text of a sensible length; otherwise an empty string."""
    return value if isinstance(value, str) and len(value) <= _LONGEST else ""


def visible_gpus(visible_devices: str | None, root: Path = Path("/")) -> list[ListedGpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, up to its first bad entry, as CUDA does.

    Local ranks take the GPUs in this order.

    Args:
        visible_devices: value of CUDA_VISIBLE_DEVICES; None if the variable is not set.
        root: root of the file system in which the driver lists its GPUs.
    """
    listed = _list_gpus(root)
    if visible_devices is None:
        return listed
    found: list[ListedGpu] = []
    for entry in map(str.strip, visible_devices.split(",")):
        if _NUMBER.fullmatch(entry):
            if int(entry) >= len(listed):
                break
            found.append(listed[int(entry)])
        elif entry.startswith(("GPU-", "MIG-")):
            found.append(next((gpu for gpu in listed if gpu.uuid.startswith(entry)), ListedGpu("", entry)))
        else:
            break
    return found


def _list_gpus(root: Path) -> list[ListedGpu]:
    """Return all GPUs in the order of their bus addresses, which is the order of nvidia-smi.

    A container may see the list of the whole machine, but only the device files of its own GPUs.
    """
    try:
        places = sorted((root / "proc/driver/nvidia/gpus").iterdir())
        texts = [(place / "information").read_text(errors="replace") for place in places]
    except OSError:
        return []
    has_files = any((root / "dev").glob("nvidia[0-9]*"))
    found = []
    for place, text in zip(places, texts, strict=True):
        uuid = _UUID.search(text)
        minor = _MINOR.search(text)
        if not (has_files and minor) or (root / f"dev/nvidia{minor[1]}").exists():
            found.append(ListedGpu(place.name, uuid[1] if uuid else ""))
    return found
