"""Decides where pip looks for torch: PyTorch's index of CPU wheels, beside pip's own indexes, or pip's own alone.

PyPI has only the CUDA build of torch for Linux, which brings 4.9 GB. On a machine without an NVIDIA driver PyTorch's
own index is searched as well: there the version is called 2.13.0+cpu, which sorts above PyPI's 2.13.0, so pip takes it.

This file needs only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import http.client
import os
import queue
import shutil
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
BUILDS = ("auto", "cpu", "cuda")

_PATIENCE = 4.0  # seconds for the index to answer; pip itself would retry for minutes
_DRIVER_PATHS = ("dev/nvidiactl", "proc/driver/nvidia")
# Settings by which the user says which indexes pip searches; pip's own configuration files are only added to.
_USERS_INDEXES = ("PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX")


@dataclass(frozen=True)
class Choice:
    """Where pip looks for torch."""

    arguments: tuple[str, ...]  # further arguments of `pip install`
    reason: str  # the reason that the user is told


def choose(build: str, *, driver: bool, users: str, why_not: Callable[[], str]) -> Choice:
    """Choose where pip looks for torch.

    Args:
        build: one of BUILDS.
        driver: whether there is an NVIDIA driver.
        users: the user's own setting of where torch comes from, or an empty string.
        why_not: asks PyTorch's index, and returns why it cannot be used, or an empty string. Called only if needed.
    """
    if build == "cuda":
        return Choice((), "the default build of pip's indexes, as TORCH=cuda asks")
    if build == "auto" and users:
        return Choice((), f"the default build of pip's indexes, because {users} is given")
    if build == "auto" and driver:
        return Choice((), "the default build of pip's indexes, because there is an NVIDIA driver")
    cause = why_not()
    if cause:
        return Choice((), f"the default build of pip's indexes, because {CPU_INDEX} cannot be reached ({cause})")
    reason = "as TORCH=cpu asks" if build == "cpu" else "because there is no NVIDIA driver (TORCH=cuda takes CUDA)"
    return Choice(("--extra-index-url", CPU_INDEX), f"the CPU build of {CPU_INDEX}, {reason}")


def has_driver(root: Path = Path("/"), search: str | None = None) -> bool:
    """Return whether this machine has an NVIDIA driver. root and search (a PATH) stand for other machines in tests."""
    return shutil.which("nvidia-smi", path=search) is not None or any((root / path).exists() for path in _DRIVER_PATHS)


def users_indexes(constraints: str, environment: Mapping[str, str]) -> str:
    """Return the user's setting that says where torch comes from, or an empty string.

    Args:
        constraints: the user's own file of constraints, or an empty string.
        environment: the environment variables.
    """
    if constraints:
        return f"CONSTRAINTS={constraints}"
    return next((name for name in _USERS_INDEXES if environment.get(name)), "")


def why_unreachable(index: str, patience: float = _PATIENCE) -> str:
    """Return why pip cannot use an index, or an empty string.

    Returns within `patience` seconds, even if the name server is silent.
    """
    answer: queue.SimpleQueue[str] = queue.SimpleQueue()
    # The time-out of a socket does not cover the look-up of its name: the thread is left behind if that takes longer.
    threading.Thread(target=lambda: answer.put(_ask(f"{index}/torch/", patience)), daemon=True).start()
    try:
        return answer.get(timeout=patience)
    except queue.Empty:
        return f"no answer within {patience:g} s"


def _ask(page: str, patience: float) -> str:
    try:
        trust = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))  # as pip does
        request = urllib.request.Request(page, method="HEAD")
        with urllib.request.urlopen(request, timeout=patience, context=trust):
            return ""
    except urllib.error.HTTPError as error:
        return f"HTTP status {error.code}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
