"""The arbiter: says which process is the head of a job of several nodes.

`Arbiter` is the interface. `Claims` implements it in the run dir that all nodes share. A meeting store, such as etcd,
brings an arbiter of its own (spec/meeting_stores/store.py): `EtcdClaims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.extensions import load
from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.meeting_stores.table import STORES


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
    store = spec.nodes.store
    if store is None:
        return {"run_dir": str(spec.run_dir)}
    return {"store": store.backend, "fields": store.fields(), "job": spec.job_id}


def at(place: Place) -> Arbiter:
    """Return the arbiter at a place."""
    if "run_dir" in place:
        return Claims(Path(place["run_dir"]))
    # Loaded only here: http.client and ssl cost each agent, head and saver 2 MiB, and most jobs have no store.
    opened: Arbiter = load(STORES[place["store"]].arbiter)(place["fields"], place["job"])
    return opened


def of(spec: JobSpec) -> Arbiter:
    """Return the arbiter of a job."""
    return at(place_of(spec))
