"""Parses `metrics:` and `traces:` of a job spec, which say where a job offers metrics and sends traces. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ftlaunch.common.durations import format_duration
from ftlaunch.spec import parsers as p
from ftlaunch.spec.errors import RefusedError, did_you_mean


@dataclass(frozen=True)
class MetricsSpec:
    """Where a job offers metrics: at a port, in a file, or both."""

    port: int | None = None
    """port of the endpoint; 0 for any free port, which the journal then names; None for no endpoint"""
    bind: str = "127.0.0.1"
    """address of the endpoint"""
    textfile: Path | None = None
    """directory of the file; None for no file"""
    ranks: bool = False
    """whether some metrics are also given for each rank"""
    linger: float = 90.0
    """seconds for which the port answers after the job's end"""

    def in_folder(self, cwd: str) -> MetricsSpec:
        """Return a copy whose path is absolute, relative to the directory `cwd`."""
        return self if self.textfile is None else replace(self, textfile=Path(cwd, self.textfile))


@dataclass(frozen=True)
class TracesSpec:
    """Where a job sends traces of restarts."""

    endpoint: str = ""
    """address of the collector; empty for that in OTEL_EXPORTER_OTLP_ENDPOINT"""


def metrics(raw: object) -> MetricsSpec:
    """Parse a mapping with `port`, `textfile` or both. Raises RefusedError."""
    given = _read(raw, _METRICS)
    if "port" not in given and "textfile" not in given:
        raise RefusedError("it must have `port` or `textfile`, or both")
    return MetricsSpec(**given)


def traces(raw: object) -> TracesSpec:
    """Parse a mapping that is empty or has an `endpoint`. Raises RefusedError."""
    return TracesSpec(**_read(raw, _TRACES))


def shown_metrics(spec: MetricsSpec | None) -> dict[str, object] | None:
    """Return metrics as a job spec has them; None for no metrics."""
    if spec is None:
        return None
    fields: dict[str, object] = {}
    if spec.port is not None:
        fields["port"] = spec.port
        fields["bind"] = spec.bind
    if spec.textfile is not None:
        fields["textfile"] = str(spec.textfile)
    fields["ranks"] = spec.ranks
    fields["linger"] = format_duration(spec.linger)
    return fields


def shown_traces(spec: TracesSpec | None) -> dict[str, object] | None:
    """Return traces as a job spec has them, with masked secrets; None for no traces."""
    if spec is None:
        return None
    return {"endpoint": endpoint_name(spec.endpoint)} if spec.endpoint else {}


def endpoint_name(endpoint: str) -> str:
    """Return an address without user name, password and query, so that people may see it."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


_Fields = Mapping[str, tuple[Callable[[object], Any], str]]
"""for each key, its parser, and what the parser allows"""


def _read(raw: object, known: _Fields) -> dict[str, Any]:
    """Parse a mapping with the known keys. Raises RefusedError."""
    if not isinstance(raw, dict):
        raise RefusedError
    given: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise RefusedError(f"the keys here are {', '.join(known)}{hint}", f".{name}", "set")
        parse, allowed = known[name]
        try:
            given[name] = parse(value)
        except RefusedError as refused:
            shown = "set" if name == "endpoint" else refused.given or value
            raise RefusedError(f"it must be {allowed}", f".{name}", shown) from None
    return given


def _address(raw: object) -> str:
    address = p.word(raw)
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise RefusedError from None
    return address


def _endpoint(raw: object) -> str:
    address = p.word(raw)
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise RefusedError
    return address.rstrip("/")


_METRICS: _Fields = {
    "port": (p.whole(0, 65535), "a port, 0 to 65535; 0 takes any free one"),
    "bind": (_address, "an address of this machine such as 127.0.0.1, or 0.0.0.0 for all of them"),
    "textfile": (lambda raw: Path(p.text(raw)), "a directory"),
    "ranks": (p.switch, "true or false"),
    "linger": (p.duration(zero=True), "a duration such as 90s, or 0"),
}
_TRACES: _Fields = {"endpoint": (_endpoint, "an address such as http://collector:4318")}
