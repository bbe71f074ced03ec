"""How many GPUs and CPUs this node offers, without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path


def count_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """NVIDIA GPUs that a rank would see; CUDA_VISIBLE_DEVICES is believed, up to its first bad entry."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = 0
        for entry in visible.split(","):
            if not re.fullmatch(r"[0-9]+|(GPU|MIG)-\S+", entry.strip()):
                break
            count += 1
        return count
    nodes = [path for path in _listed(root / "dev") if re.fullmatch(r"nvidia[0-9]+", path)]
    return len(nodes) or len(_listed(root / "proc/driver/nvidia/gpus"))


def count_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def _listed(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
