"""Resolves the etcd in which the nodes of a job meet, from torchrun's settings and two variables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ftlaunch.spec.errors import Given, SpecError
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.system.job_token import ETCD_PASSWORD, ETCD_USER

_MOST_MEMBERS = 32
_FILES = ("cacert", "cert", "key")


@dataclass(frozen=True)
class EtcdSpec:
    """The members of one etcd, and how to talk to them. Implements MeetingStore."""

    backend: ClassVar[str] = "etcd"
    port: ClassVar[int] = 2379
    arbiter: ClassVar[str] = "ftlaunch.nodes.channel.etcd.claims:open_claims"

    members: tuple[tuple[str, int], ...]
    """host and port of each member that was named; other members are not used"""
    tls: bool = False
    cacert: str | None = None
    """file with the authorities that sign the members' certificates; None for the system's"""
    cert: str | None = None
    """file with the certificate by which etcd recognises this node"""
    key: str | None = None
    """file with that certificate's key; None if the certificate's file has the key"""
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, endpoint: Given, conf: Given, settings: Mapping[str, str], environ: Mapping[str, str]) -> EtcdSpec:
        """Return the etcd that the settings describe.

        Args:
            endpoint: `rdzv_endpoint`, which is set.
            conf: `rdzv_conf`, for error messages.
            settings: the settings in `conf`.
            environ: has user name and password.

        Raises:
            SpecError: a setting is not allowed.
        """
        user, password = _credentials(environ)
        tls = _is_tls(conf, settings)
        cacert, cert, key = _files(conf, settings)
        members = _members(endpoint)
        return cls(members=members, tls=tls, cacert=cacert, cert=cert, key=key, user=user, password=password)

    def fields(self) -> dict[str, Any]:
        """Return what `from_fields` makes the same EtcdSpec from, as JSON can hold it; has the password."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> EtcdSpec:
        """Return the EtcdSpec whose `fields` went through JSON."""
        members = tuple((host, port) for host, port in fields["members"])
        return cls(**{**fields, "members": members})

    def __str__(self) -> str:
        return ",".join(str(Endpoint(host, port)) for host, port in self.members)


def _members(endpoint: Given) -> tuple[tuple[str, int], ...]:
    """Return host and port of each named member, each once. Raises SpecError."""
    named: Sequence[Endpoint] = endpoint.value
    if len(named) > _MOST_MEMBERS:
        raise endpoint.error(
            "rdzv_endpoint", f"it names {len(named)} members of etcd, and {_MOST_MEMBERS} are the most"
        )
    if any(member.port == 0 for member in named):
        raise endpoint.error("rdzv_endpoint", "etcd listens at a port from 1 to 65535")
    return tuple(dict.fromkeys((member.host, member.port or EtcdSpec.port) for member in named))


def _is_tls(conf: Given, settings: Mapping[str, str]) -> bool:
    """Return whether the members are reached by https. Raises SpecError."""
    protocol = settings.get("protocol", "http")
    if protocol not in ("http", "https"):
        raise conf.error("rdzv_conf", "`protocol` must be http or https")
    if protocol == "http" and (given := [name for name in _FILES if name in settings]):
        raise conf.error("rdzv_conf", f"`{given[0]}` is for protocol=https, and the protocol is http")
    return protocol == "https"


def _files(conf: Given, settings: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Return the files of the authorities, the certificate and its key. Raises SpecError."""
    for name in _FILES:
        if name in settings and not settings[name]:
            raise conf.error("rdzv_conf", f"`{name}` must be the path of a file")
    if "key" in settings and "cert" not in settings:
        raise conf.error("rdzv_conf", "`key` is the key of a certificate; give `cert`, too")
    return settings.get("cacert"), settings.get("cert"), settings.get("key")


def _credentials(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return user name and password, or None for both. Raises SpecError if one of them is missing."""
    user = environ.get(ETCD_USER) or None
    password = environ.get(ETCD_PASSWORD) or None
    if (user is None) != (password is None):
        given, missing = (ETCD_USER, ETCD_PASSWORD) if password is None else (ETCD_PASSWORD, ETCD_USER)
        raise SpecError(f"cannot use {given}: {missing} is not set; etcd wants both or, where it asks nobody, neither")
    return user, password
