"""`notify:` of a job spec: whom to tell of what, in which way, and how often it is tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.durations import format_duration
from ftlaunch.common.masking import masked_text
from ftlaunch.spec import parsers as p
from ftlaunch.spec.errors import RefusedError, SpecError, did_you_mean
from ftlaunch.spec.notify_targets.table import WAYS
from ftlaunch.spec.notify_targets.target import FOR_PROGRAMS, KINDS, Target

_PLACES = ("{job_id}", "{run_dir}")
_LONGEST_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class NotifyTarget:
    """One target of notices."""

    whom: Target
    link: str = ""
    """told to people: a template of an address, with {job_id} and {run_dir}"""
    on: tuple[str, ...] = FOR_PROGRAMS
    """kinds of notices"""
    timeout: float = 10.0
    """of one try, seconds"""
    retries: int = 3


def targets(raw: object) -> tuple[NotifyTarget, ...]:
    """Read one target, or a list of them. Raises RefusedError."""
    if isinstance(raw, dict):
        return (_target(raw, ""),)
    if not isinstance(raw, list):
        raise RefusedError
    return tuple(_target(item, f"[{index}]") for index, item in enumerate(raw))


def as_spec(target: NotifyTarget) -> dict[str, object]:
    """Return what a spec says for `target`, but for its secrets."""
    link = {"link": masked_text(target.link)} if target.link else {}
    return {
        target.whom.key: target.whom.shown(),
        **link,
        "on": list(target.on),
        "timeout": format_duration(target.timeout),
        "retries": target.retries,
    }


def check_targets(asked: Iterable[NotifyTarget]) -> None:
    """Ask whether notices can be delivered, before the job begins. Raises SpecError with the first that cannot."""
    every = list(asked)
    for key, way in WAYS.items():
        of_this_way = [(number, target.whom) for number, target in enumerate(every) if target.whom.key == key]
        if not of_this_way:
            continue
        refusals = way.refusals([whom for _, whom in of_this_way])
        for (number, _), wrong in zip(of_this_way, refusals, strict=True):
            if wrong is not None:
                where = "notify" if len(every) == 1 else f"notify[{number}]"
                raise SpecError(f"cannot use `{where}.{key}`{wrong}")


def keys() -> str:
    """Return the keys that name whom to tell, as a list in a sentence."""
    *rest, last = (f"`{key}`" for key in WAYS)
    return f"{', '.join(rest)} or {last}"


def _target(raw: object, at: str) -> NotifyTarget:
    if not isinstance(raw, dict):
        raise RefusedError(f"it must be a mapping with {keys()}", at, raw)
    known = [*WAYS, *_FIELDS]
    for name in raw:
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise RefusedError(f"the keys here are {', '.join(known)}{hint}", f"{at}.{name}", "set")
    asked = [key for key in WAYS if key in raw]
    if len(asked) != 1:
        raise RefusedError(f"it must have one of {keys().replace(' or ', ' and ')}", at, raw)
    [key] = asked
    try:
        whom = WAYS[key].parse(raw[key])
    except RefusedError as refused:
        # An address or a command may hold a secret: it is not repeated.
        raise RefusedError(f"it must be {WAYS[key].allowed}{refused.hint}", f"{at}.{key}", "set") from None
    given: dict[str, Any] = {"on": tuple(whom.kinds)}
    for name, (parse, allowed) in _FIELDS.items():
        if name in raw:
            try:
                given[name] = parse(raw[name])
            except RefusedError as refused:
                shown = refused.given or raw[name]
                raise RefusedError(f"it must be {allowed}{refused.hint}", f"{at}.{name}", shown) from None
    return NotifyTarget(whom, **given)


def _link(raw: object) -> str:
    address = p.word(raw)
    bare = address
    for place in _PLACES:
        bare = bare.replace(place, "x")
    if not re.fullmatch(r"https?://[^/{}]+[^{}]*", bare) or not bare.isprintable():
        raise RefusedError
    return address


def _on(raw: object) -> tuple[str, ...]:
    kinds = raw if isinstance(raw, list) else p.text(raw).replace(",", " ").split()
    for kind in kinds:
        if kind not in KINDS:
            raise RefusedError(given=kind, hint=did_you_mean(str(kind), KINDS))
    if not kinds:
        raise RefusedError
    return tuple(kinds)


def _timeout(raw: object) -> float:
    seconds = p.duration()(raw)
    if seconds > _LONGEST_TIMEOUT_SECONDS:
        raise RefusedError
    return seconds


_FIELDS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "link": (_link, f"an address that begins with https:// or http://, with {' or '.join(_PLACES)} where they belong"),
    "on": (_on, f"some of {', '.join(KINDS)}"),
    "timeout": (_timeout, f"a duration such as 10s, {format_duration(_LONGEST_TIMEOUT_SECONDS)} at most"),
    "retries": (p.whole(0, 10), "a whole number from 0 to 10"),
}
"""keys of a target beside the one that says whom to tell: how a value is read, and what is allowed"""
