"""`notify:` of a job spec: whom to tell of what, by a command, a webhook, or a service that Apprise knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ftlaunch.common.durations import format_duration
from ftlaunch.common.masking import MASK, masked_args, masked_text
from ftlaunch.spec import parsers as p
from ftlaunch.spec.errors import RefusedError, did_you_mean

KINDS = ("incident", "recovered", "give_up", "done", "stopped", "slow", "hang_suspected", "differs")
# A slow rank alone is no reason to wake a person, and a job is mostly stopped by whoever would be told.
_ON_APPRISE = tuple(kind for kind in KINDS if kind not in ("slow", "stopped"))
# Programs that are told expect a known list.
_ON = tuple(kind for kind in _ON_APPRISE if kind not in ("recovered", "differs"))
_WHOM = ("command", "url", "apprise")
_PLACES = ("{job_id}", "{run_dir}")
_LONGEST_TIMEOUT = 300.0


@dataclass(frozen=True)
class NotifyTarget:
    """Whom to tell: a command without a shell, a line for /bin/sh, a webhook, or Apprise's address; one of them."""

    argv: tuple[str, ...] = ()
    shell: str = ""
    url: str = ""
    apprise: str = ""
    """an address of Apprise's form; all of it may be secret but the scheme"""
    link: str = ""
    """told to people: a template of an address, with {job_id} and {run_dir}"""
    on: tuple[str, ...] = _ON
    timeout: float = 10.0
    """of one try, seconds"""
    retries: int = 3

    @property
    def name(self) -> str:
        """The target's name in journal and terminal. Of a webhook only the host is shown: the path may be secret."""
        if self.apprise:
            return f"{apprise_scheme(self.apprise)}://{MASK}"
        if self.url:
            parts = urlsplit(self.url)
            port = "" if parts.port is None else f":{parts.port}"
            more = f"/{MASK}" if parts.path.strip("/") or parts.query else ""
            return f"{parts.scheme}://{parts.hostname}{port}{more}"
        word = self.argv[0] if self.argv else self.shell.split()[0]
        return MASK if "=" in word else word


def targets(raw: object) -> tuple[NotifyTarget, ...]:
    """One target, or a list of them."""
    if isinstance(raw, dict):
        return (_target(raw, ""),)
    if not isinstance(raw, list):
        raise RefusedError
    return tuple(_target(item, f"[{index}]") for index, item in enumerate(raw))


def as_spec(target: NotifyTarget) -> dict[str, object]:
    """What a spec says for `target`, but for its secrets."""
    whom: dict[str, object] = {"apprise" if target.apprise else "url": target.name}
    if target.argv:
        whom = {"command": [masked_text(arg) for arg in masked_args(target.argv)]}
    elif target.shell:
        whom = {"command": masked_text(target.shell)}
    link = {"link": masked_text(target.link)} if target.link else {}
    told = {"on": list(target.on), "timeout": format_duration(target.timeout), "retries": target.retries}
    return {**whom, **link, **told}


def apprise_scheme(address: str) -> str:
    """The name of the service in an address of Apprise's form: what stands before `://`."""
    return address.partition("://")[0].lower()


def _target(raw: object, at: str) -> NotifyTarget:
    if not isinstance(raw, dict):
        raise RefusedError("it must be a mapping with `command`, `url` or `apprise`", at, raw)
    for name in raw:
        if name not in _FIELDS:
            hint = did_you_mean(str(name), _FIELDS)
            raise RefusedError(f"the keys here are {', '.join(_FIELDS)}{hint}", f"{at}.{name}", "set")
    if sum(whom in raw for whom in _WHOM) != 1:
        raise RefusedError("it must have one of `command`, `url` and `apprise`", at, raw)
    given: dict[str, Any] = {"on": _ON_APPRISE} if "apprise" in raw else {}
    for name, value in raw.items():
        parse, allowed = _FIELDS[name]
        try:
            given |= parse(value)
        except RefusedError as refused:
            # An address or a command may hold a secret: it is not repeated.
            shown = "set" if name in _WHOM else refused.given or value
            raise RefusedError(f"it must be {allowed}{refused.hint}", f"{at}.{name}", shown) from None
    return NotifyTarget(**given)


def _command(raw: object) -> dict[str, object]:
    if isinstance(raw, list):
        argv = p.text_list(raw)
        if not argv or not argv[0].strip():
            raise RefusedError
        return {"argv": argv}
    return {"shell": p.text(raw)}


def _url(raw: object) -> dict[str, object]:
    address = p.word(raw)
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no such port, or brackets that do not match
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", address):
        raise RefusedError
    return {"url": address}


def _apprise(raw: object) -> dict[str, object]:
    """What the form can tell; whether Apprise knows the service is asked before the job begins."""
    address = p.word(raw)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[!-~]+", address):
        raise RefusedError
    return {"apprise": address}


def _link(raw: object) -> dict[str, object]:
    address = p.word(raw)
    bare = address
    for place in _PLACES:
        bare = bare.replace(place, "x")
    if not re.fullmatch(r"https?://[^/{}]+[^{}]*", bare) or not bare.isprintable():
        raise RefusedError
    return {"link": address}


def _on(raw: object) -> dict[str, object]:
    kinds = raw if isinstance(raw, list) else p.text(raw).replace(",", " ").split()
    for kind in kinds:
        if kind not in KINDS:
            raise RefusedError(given=kind, hint=did_you_mean(str(kind), KINDS))
    if not kinds:
        raise RefusedError
    return {"on": tuple(kinds)}


def _timeout(raw: object) -> dict[str, object]:
    if (seconds := p.duration()(raw)) > _LONGEST_TIMEOUT:
        raise RefusedError
    return {"timeout": seconds}


_FIELDS: Mapping[str, tuple[Callable[[object], dict[str, object]], str]] = {
    "command": (_command, "a list of words, run as they are, or one text, run by /bin/sh"),
    "url": (_url, "an address that begins with https:// or http://"),
    "apprise": (_apprise, "an address of Apprise's form, such as slack://TOKEN_A/TOKEN_B/TOKEN_C"),
    "link": (_link, f"an address that begins with https:// or http://, with {' or '.join(_PLACES)} where they belong"),
    "on": (_on, f"some of {', '.join(KINDS)}"),
    "timeout": (_timeout, f"a duration such as 10s, {format_duration(_LONGEST_TIMEOUT)} at most"),
    "retries": (lambda raw: {"retries": p.whole(0, 10)(raw)}, "a whole number from 0 to 10"),
}
