"""The interface of a meeting store: a service in which the nodes of a job meet, and which says who is the head.

etcd is one. A meeting store is a class in a file of its own in this folder, with an entry in `table.py`, and brings an
`Arbiter` (nodes/channel/arbiter.py) that keeps the head's sign in the service. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from ftlaunch.spec.errors import Given


class MeetingStore(Protocol):
    """Describes the service and how to reach it; a frozen dataclass. Nothing here talks to the service."""

    backend: ClassVar[str]
    """the word of `--rdzv-backend` that chooses the store"""
    port: ClassVar[int]
    """the TCP port of the service where the user names none"""
    arbiter: ClassVar[str]
    """"module:function", called with what `fields` returned and the id of the job; returns the Arbiter of the job"""

    @property
    def members(self) -> Sequence[tuple[str, int]]:
        """Host and port of each process of the service. A head prefers an address of its machine on a route to them."""

    @classmethod
    def parse(
        cls, endpoint: Given, conf: Given, settings: Mapping[str, str], environ: Mapping[str, str]
    ) -> MeetingStore:
        """Return the store that the settings describe.

        Args:
            endpoint: `rdzv_endpoint`, which is set: a tuple of Endpoint.
            conf: `rdzv_conf`, for error messages.
            settings: the settings in `conf` by name.
            environ: environment of this process, which may hold secrets.

        Raises:
            SpecError: a setting is not allowed.
        """

    def fields(self) -> Mapping[str, Any]:
        """Return what another process of this job needs to reach the service, as JSON can hold it; may have secrets."""

    def __str__(self) -> str:
        """Return the value of `--rdzv-endpoint` that names the same service. Never a secret."""
