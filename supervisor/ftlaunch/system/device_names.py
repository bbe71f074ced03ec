"""The names by which other monitors know a node and its GPUs.

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
_LONGEST = 253  # characters of a name, as in DNS
_MOST_GPUS = 1024  # GPUs of a node


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
        gpus=_visible_uuids(environ.get("CUDA_VISIBLE_DEVICES"), _listed_uuids(root / "proc/driver/nvidia/gpus")),
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


def _listed_uuids(folder: Path) -> list[str]:
    """Return the UUIDs of all GPUs in the order of their bus addresses, which is the order of nvidia-smi."""
    try:
        places = sorted(folder.iterdir())
        found = [_UUID.search((place / "information").read_text(errors="replace")) for place in places]
    except OSError:
        return []
    return [match[1] if match else "" for match in found]


def _visible_uuids(visible_devices: str | None, listed: list[str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that CUDA_VISIBLE_DEVICES names, up to its first bad entry, as CUDA does.

    Args:
        visible_devices: value of CUDA_VISIBLE_DEVICES; None if the variable is not set.
        listed: UUIDs of all GPUs.
    """
    if visible_devices is None:
        return tuple(listed)
    found: list[str] = []
    for entry in map(str.strip, visible_devices.split(",")):
        if _NUMBER.fullmatch(entry):
            if int(entry) >= len(listed):
                break
            found.append(listed[int(entry)])
        elif entry.startswith(("GPU-", "MIG-")):
            found.append(next((uuid for uuid in listed if uuid.startswith(entry)), entry))
        else:
            break
    return tuple(found)
