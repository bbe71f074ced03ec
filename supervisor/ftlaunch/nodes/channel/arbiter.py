"""The arbiter: says which process is the head of a job of several nodes, from the shared run dir or from etcd.

`Arbiter` is the interface that both implement, `Claims` for the run dir and `EtcdClaims` for etcd. A third kind needs a
class with these methods, an entry in `place_of` and `at`, and a way for the spec to choose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.etcd import EtcdSpec


class Arbiter(Protocol):
    """Records which process is the head of one job.

    Each head claims a term, a number that is higher than all terms before. An arbiter is for one thread at a time. All
    methods may wait for storage, and must not be called in an event loop.
    """

    where: str
    """names the place, for people"""

    def read(self) -> Sign | None:
        """Return the newest sign, or None if there is none or the place does not answer."""

    def newest(self) -> Sign | None:
        """Return the newest sign, or None if there is none.

        Raises:
            OSError: the place does not answer.
        """

    def next_term(self) -> int:
        """Return the term after all claimed ones.

        Raises:
            OSError: the place does not answer.
        """

    def claim(self, sign: Sign) -> bool:
        """Claim the term of `sign` and show the sign.

        Returns:
            False if another process has claimed this term or a higher one.

        Raises:
            OSError: the claim cannot be written.
        """

    def show(self, sign: Sign) -> None:
        """Replace the sign of life by `sign`.

        Raises:
            OSError: the sign cannot be written.
        """

    def newer(self, term: int) -> Sign | None:
        """Return the sign of a head with a term above `term`, or None if there is no such head.

        Raises:
            OSError: the place does not answer.
        """

    def check(self, term: int) -> None:
        """Check that the head of `term` still leads, before a checkpoint is committed.

        Raises:
            PermissionError: a head of a higher term has claimed the job, or the place does not answer.
        """


Place = Mapping[str, Any]
"""what another process needs to use the same arbiter, as JSON can hold it; may contain a password"""


def place_of(spec: JobSpec) -> Place:
    """Return the place of a job's arbiter."""
    if spec.nodes.etcd is None:
        return {"run_dir": str(spec.run_dir)}
    return {"etcd": asdict(spec.nodes.etcd), "job": spec.job_id}


def at(place: Place) -> Arbiter:
    """Return the arbiter at a place."""
    if "run_dir" in place:
        return Claims(Path(place["run_dir"]))
    # Imported only here: http.client and ssl cost each agent, head and saver 2 MiB, and most jobs have no etcd.
    from ftlaunch.nodes.channel.etcd.claims import EtcdClaims  # noqa: PLC0415
    from ftlaunch.nodes.channel.etcd.client import EtcdClient  # noqa: PLC0415

    fields = place["etcd"]
    members = tuple((host, port) for host, port in fields["members"])
    spec = EtcdSpec(**{**fields, "members": members})
    return EtcdClaims(EtcdClient(spec), place["job"])


def of(spec: JobSpec) -> Arbiter:
    """Return the arbiter of a job."""
    return at(place_of(spec))
