"""Who says which process is the head of a job of several nodes: the run dir that all nodes share, or etcd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.etcd import EtcdSpec


class Arbiter(Protocol):
    """Of one job, for one thread at a time. Its methods may wait for storage, and are nothing for an event loop."""

    where: str
    """for people"""

    def read(self) -> Sign | None:
        """The newest sign; None where there is none, or nobody can tell."""

    def newest(self) -> Sign | None:
        """The newest sign; None where there is none. Raises OSError where nobody can tell."""

    def next_term(self) -> int:
        """The term after all that were claimed. Raises OSError."""

    def claim(self, sign: Sign) -> bool:
        """Claim a term, and show the sign; False where another one has it, or a higher one. Raises OSError."""

    def show(self, sign: Sign) -> None:
        """Replace the sign of life. Raises OSError."""

    def newer(self, term: int) -> Sign | None:
        """The sign of a head of a higher term than this; None where there is none. Raises OSError."""

    def check(self, term: int) -> None:
        """Raises PermissionError where a head of a higher term has claimed the job, or nobody can tell."""


Place = Mapping[str, Any]
"""what another process of this job needs to ask the same arbiter; it may hold a password"""


def place_of(spec: JobSpec) -> Place:
    """Where the arbiter of a job is, as JSON can say it."""
    if spec.nodes.etcd is None:
        return {"run_dir": str(spec.run_dir)}
    return {"etcd": asdict(spec.nodes.etcd), "job": spec.job_id}


def at(place: Place) -> Arbiter:
    """The arbiter at a place."""
    if "run_dir" in place:
        return Claims(Path(place["run_dir"]))
    # http.client and ssl cost every agent, head and saver 2 MiB, and most jobs have no etcd.
    from ftlaunch.nodes.channel.etcd.claims import EtcdClaims  # noqa: PLC0415
    from ftlaunch.nodes.channel.etcd.client import EtcdClient  # noqa: PLC0415

    told = place["etcd"]
    spec = EtcdSpec(**{**told, "members": tuple((host, port) for host, port in told["members"])})
    return EtcdClaims(EtcdClient(spec), place["job"])


def of(spec: JobSpec) -> Arbiter:
    """The arbiter of a job."""
    return at(place_of(spec))
