"""`notify:` of a job spec: whom to tell of what, by a command or a webhook."""

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

KINDS = ("incident", "give_up", "done", "slow", "hang_suspected")
_ON = tuple(kind for kind in KINDS if kind != "slow")  # a slow rank alone is no reason to wake a person
_LONGEST_TIMEOUT = 300.0


@dataclass(frozen=True)
class NotifyTarget:
    """Whom to tell: a command without a shell, a line for /bin/sh, or the address of a webhook; one of them."""

    argv: tuple[str, ...] = ()
    shell: str = ""
    url: str = ""
    on: tuple[str, ...] = _ON
    timeout: float = 10.0
    """of one try, seconds"""
    retries: int = 3

    @property
    def name(self) -> str:
        """The target's name in journal and terminal. Of an address only the host is shown: the path may be secret."""
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
    whom: dict[str, object] = {"url": target.name}
    if target.argv:
        whom = {"command": [masked_text(arg) for arg in masked_args(target.argv)]}
    elif target.shell:
        whom = {"command": masked_text(target.shell)}
    return {**whom, "on": list(target.on), "timeout": format_duration(target.timeout), "retries": target.retries}


def _target(raw: object, at: str) -> NotifyTarget:
    if not isinstance(raw, dict):
        raise RefusedError("it must be a mapping with `command` or `url`", at, raw)
    for name in raw:
        if name not in _FIELDS:
            hint = did_you_mean(str(name), _FIELDS)
            raise RefusedError(f"the keys here are {', '.join(_FIELDS)}{hint}", f"{at}.{name}", "set")
    if ("command" in raw) == ("url" in raw):
        raise RefusedError("it must have either `command` or `url`", at, raw)
    given: dict[str, Any] = {}
    for name, value in raw.items():
        parse, allowed = _FIELDS[name]
        try:
            given |= parse(value)
        except RefusedError as refused:
            # An address or a command may hold a secret: it is not repeated.
            shown = "set" if name in ("url", "command") else refused.given or value
            raise RefusedError(f"it must be {allowed}", f"{at}.{name}", shown) from None
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


def _on(raw: object) -> dict[str, object]:
    kinds = raw if isinstance(raw, list) else p.text(raw).replace(",", " ").split()
    for kind in kinds:
        if kind not in KINDS:
            raise RefusedError(given=kind)
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
    "on": (_on, f"some of {', '.join(KINDS)}"),
    "timeout": (_timeout, f"a duration such as 10s, {format_duration(_LONGEST_TIMEOUT)} at most"),
    "retries": (lambda raw: {"retries": p.whole(0, 10)(raw)}, "a whole number from 0 to 10"),
}
