"""Which etcd the nodes of a job meet in, from torchrun's settings and two variables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ftlaunch.spec.errors import Given, SpecError
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.system.job_token import ETCD_PASSWORD, ETCD_USER

PORT = 2379
_MOST_MEMBERS = 32
_FILES = ("cacert", "cert", "key")


@dataclass(frozen=True)
class EtcdSpec:
    """The members of one etcd, and how they are spoken to."""

    members: tuple[tuple[str, int], ...]
    """host and port of each that was named; the others are not asked"""
    tls: bool = False
    cacert: str | None = None
    """file of the authorities that may have signed the members' certificates; None: those of the system"""
    cert: str | None = None
    """file of the certificate by which etcd knows this node"""
    key: str | None = None
    """file of that certificate's key; None: it is in the same file"""
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return ",".join(str(Endpoint(host, port)) for host, port in self.members)


def etcd_spec(endpoint: Given, conf: Given, settings: Mapping[str, str], environ: Mapping[str, str]) -> EtcdSpec:
    """What `--rdzv-endpoint`, `--rdzv-conf` (whose settings are given apart) and variables say. Raises SpecError."""
    user, password = _who(environ)
    tls, (cacert, cert, key) = _is_tls(conf, settings), _files(conf, settings)
    return EtcdSpec(_members(endpoint), tls, cacert, cert, key, user, password)


def _members(endpoint: Given) -> tuple[tuple[str, int], ...]:
    named: Sequence[Endpoint] = endpoint.value
    if len(named) > _MOST_MEMBERS:
        raise endpoint.error(
            "rdzv_endpoint", f"it names {len(named)} members of etcd, and {_MOST_MEMBERS} are the most"
        )
    if any(one.port == 0 for one in named):
        raise endpoint.error("rdzv_endpoint", "etcd listens at a port from 1 to 65535")
    return tuple(dict.fromkeys((one.host, one.port or PORT) for one in named))


def _is_tls(conf: Given, settings: Mapping[str, str]) -> bool:
    protocol = settings.get("protocol", "http")
    if protocol not in ("http", "https"):
        raise conf.error("rdzv_conf", "`protocol` must be http or https")
    if protocol == "http" and (given := [name for name in _FILES if name in settings]):
        raise conf.error("rdzv_conf", f"`{given[0]}` is for protocol=https, and the protocol is http")
    return protocol == "https"


def _files(conf: Given, settings: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    for name in _FILES:
        if name in settings and not settings[name]:
            raise conf.error("rdzv_conf", f"`{name}` must be the path of a file")
    if "key" in settings and "cert" not in settings:
        raise conf.error("rdzv_conf", "`key` is the key of a certificate; give `cert`, too")
    return settings.get("cacert"), settings.get("cert"), settings.get("key")


def _who(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    user, password = environ.get(ETCD_USER) or None, environ.get(ETCD_PASSWORD) or None
    if (user is None) != (password is None):
        given, missing = (ETCD_USER, ETCD_PASSWORD) if password is None else (ETCD_PASSWORD, ETCD_USER)
        raise SpecError(f"cannot use {given}: {missing} is not set; etcd wants both or, where it asks nobody, neither")
    return user, password
