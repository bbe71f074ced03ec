"""What is known of a node before it has ranks: the versions that it runs, its script, and which machine it is."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path

from ftlaunch import __version__
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch_contract.files import untrusted_json

_MOST_OF_A_SCRIPT = 4 << 20  # bytes
_LONGEST = 300  # characters of a value
_MACHINE_ID = Path("/etc/machine-id")
_VERSION = re.compile(r"""^__version__ = ['"](.+)['"]$""", re.MULTILINE)


@dataclass(frozen=True)
class NodeFacts:
    """Of one node; a value is empty where it is not known."""

    ftlaunch: str
    python: str
    torch: str
    script: str
    """digest of the script's beginning"""
    machine: str
    """names the machine: HOST, or HOST/DIGEST where the system has an id"""

    @property
    def host(self) -> str:
        """The machine's host name."""
        return self.machine.partition("/")[0]

    def as_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return asdict(self)


def gathered(spec: JobSpec) -> NodeFacts:
    """The facts of this node, as they were when they were first asked for."""
    target = spec.launch.target if spec.launch.kind == "script" else ""
    return _gathered(target, spec.launch.python == sys.executable)


@functools.cache  # the script may be edited while the job runs: what counts is what this node was started with
def _gathered(script: str, own_python: bool) -> NodeFacts:
    version = _torch_version() if own_python else ""
    return NodeFacts(__version__, platform.python_version(), version, _digest(script), _machine())


def _torch_version() -> str:
    """As torch's own file says it. importlib.metadata would hold 1.7 MiB of every agent for this one question."""
    found = find_spec("torch")  # imports nothing
    for place in (found and found.submodule_search_locations) or ():
        with contextlib.suppress(OSError):
            told = _VERSION.search((Path(place) / "version.py").read_text())
            return told[1] if told else ""
    return ""


def _digest(script: str) -> str:
    if not script:
        return ""
    try:
        with Path(script).open("rb") as file:
            return hashlib.sha256(file.read(_MOST_OF_A_SCRIPT)).hexdigest()[:16]
    except OSError:
        return ""


def _machine() -> str:
    number = ""
    with contextlib.suppress(OSError, ValueError):
        number = _MACHINE_ID.read_text().strip()
    if not number:
        return socket.gethostname()
    # the id itself is not to be shown to others: see machine-id(5)
    return f"{socket.gethostname()}/{hashlib.sha256(f'ftlaunch {number}'.encode()).hexdigest()[:12]}"


def read(told: Mapping[str, object]) -> NodeFacts:
    """The facts that a node has sent. Raises ValueError."""
    values = {field.name: untrusted_json.text(told.get(field.name), f"`{field.name}`") for field in fields(NodeFacts)}
    if any(len(value) > _LONGEST for value in values.values()):
        raise ValueError(f"facts of more than {_LONGEST} characters")
    return NodeFacts(**values)
