"""Facts about a node before it has ranks: the versions that it runs, its script, and its machine.

An agent gathers the facts of its node once, at its start. The head compares them with its own.
"""

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
_LONGEST_VALUE = 300  # characters
_MACHINE_ID = Path("/etc/machine-id")
_VERSION = re.compile(r"""^__version__ = ['"](.+)['"]$""", re.MULTILINE)


@dataclass(frozen=True)
class NodeFacts:
    """The facts of one node. A text is empty where its fact is unknown."""

    ftlaunch: str
    """version of ftlaunch"""
    python: str
    """version of the agent's Python"""
    torch: str
    """version of torch; empty if the ranks run another Python than the agent, or if torch is not installed"""
    script: str
    """the first 16 hexadecimal digits of SHA-256 of the first 4 MiB of the script; empty if the job runs no script, or
    the script cannot be read"""
    machine: str
    """the name of the machine: HOST, or HOST/DIGEST if the system has a machine id"""

    @property
    def host(self) -> str:
        """The machine's host name."""
        return self.machine.partition("/")[0]

    def as_dict(self) -> dict[str, str]:
        """Return the facts by name, as JSON can hold them."""
        return asdict(self)


def gather(spec: JobSpec) -> NodeFacts:
    """Return the facts of this node, as they were at the first call for the same script and the same Python."""
    target = spec.launch.target if spec.launch.kind == "script" else ""
    return _gather(target, spec.launch.python == sys.executable)


@functools.cache  # the script may be edited while the job runs, but the facts are those of the start
def _gather(script: str, own_python: bool) -> NodeFacts:
    version = _torch_version() if own_python else ""
    return NodeFacts(
        ftlaunch=__version__,
        python=platform.python_version(),
        torch=version,
        script=_digest(script),
        machine=_machine(),
    )


def _torch_version() -> str:
    """Return the version in torch's own file. importlib.metadata would cost each agent 1.7 MiB of memory."""
    found = find_spec("torch")  # imports nothing
    for folder in (found and found.submodule_search_locations) or ():
        with contextlib.suppress(OSError):
            match = _VERSION.search((Path(folder) / "version.py").read_text())
            return match[1] if match else ""
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
    # machine-id(5) asks not to show the id itself to others
    return f"{socket.gethostname()}/{hashlib.sha256(f'ftlaunch {number}'.encode()).hexdigest()[:12]}"


def read(sent: Mapping[str, object]) -> NodeFacts:
    """Return the facts that a node has sent, under the names that `as_dict` gives them. Other names are ignored.

    Raises:
        ValueError: a fact is missing, is no text, or is longer than 300 characters.
    """
    values = {field.name: untrusted_json.text(sent.get(field.name), f"`{field.name}`") for field in fields(NodeFacts)}
    if any(len(value) > _LONGEST_VALUE for value in values.values()):
        raise ValueError(f"facts of more than {_LONGEST_VALUE} characters")
    return NodeFacts(**values)
