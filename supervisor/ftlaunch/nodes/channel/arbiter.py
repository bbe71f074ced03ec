"""The arbiter: says which process is the head of a job of several nodes.

`Arbiter` is the interface. `Claims` implements it in the run dir that all nodes share. A meeting store, such as etcd,
brings an arbiter of its own (spec/meeting_stores/store.py): `EtcdClaims`. Where nodes share nothing, they elect the
head: `VotedClaims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.extensions import load
from ftlaunch.nodes.channel.claims import STALE_PART, Claims, Sign
from ftlaunch.nodes.channel.votes.claims import VotedClaims
from ftlaunch.nodes.channel.votes.voter_links import VoterLinks
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.meeting_stores.table import STORES
from ftlaunch.system import job_token


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
    nodes = spec.nodes
    store = nodes.store
    run_dir = str(spec.run_dir)
    if store is None and may_vote(spec):
        token = nodes.token.encode() if nodes.token else job_token.NO_TOKEN
        return {"run_dir": run_dir, "token": token.hex(), "stale_seconds": nodes.timeout * STALE_PART}
    if store is None:
        return {"run_dir": run_dir}
    return {"store": store.backend, "fields": store.fields(), "job": spec.job_id}


def may_vote(spec: JobSpec) -> bool:
    """Return whether the nodes of a job can elect its head, should they not share the run dir.

    They must have a token, or none, that does not lie in a shared file.
    """
    nodes = spec.nodes
    return nodes.several and nodes.store is None and (nodes.token is not None or not nodes.authenticates)


def at(place: Place) -> Arbiter:
    """Return the arbiter at a place."""
    if "token" in place:
        run_dir = Path(place["run_dir"])
        voters = VoterLinks(run_dir, bytes.fromhex(place["token"]))
        return VotedClaims(Claims(run_dir), voters, place["stale_seconds"])
    if "run_dir" in place:
        return Claims(Path(place["run_dir"]))
    # Loaded only here: http.client and ssl cost each agent, head and saver 2 MiB, and most jobs have no store.
    opened: Arbiter = load(STORES[place["store"]].arbiter)(place["fields"], place["job"])
    return opened


def of(spec: JobSpec) -> Arbiter:
    """Return the arbiter of a job."""
    return at(place_of(spec))
