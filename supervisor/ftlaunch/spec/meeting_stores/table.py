"""The table of meeting stores by the word of `--rdzv-backend`, and the parser of that word. Pure."""

from __future__ import annotations

from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.meeting_stores.etcd import EtcdSpec
from ftlaunch.spec.meeting_stores.store import MeetingStore
from ftlaunch.spec.parsers import one_of

STORES: dict[str, type[MeetingStore]] = {EtcdSpec.backend: EtcdSpec}


def backend(raw: object) -> str:
    """Parse torchrun's name of a rendezvous backend: c10d, static, or that of a meeting store.

    Raises:
        RefusedError: there is no such backend.
    """
    if raw == "etcd-v2":
        raise RefusedError("v2 of etcd's protocol is not spoken; `etcd` speaks v3, with etcd 3.4 or later")
    return one_of("c10d", "static", *STORES)(raw)


def allowed_backends() -> str:
    """Return the words that `backend` takes, for people."""
    return f"{', '.join(['c10d', 'static', *STORES][:-1])} or {[*STORES][-1]}"
