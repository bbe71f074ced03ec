"""Values of a JobSpec as a job spec writes them: what is read again gives the same value. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ftlaunch.common.durations import format_duration
from ftlaunch.common.rates import format_rate
from ftlaunch.policy.fault_rules import FaultRule
from ftlaunch.spec.notify_targets.notify_target import NotifyTarget, as_spec
from ftlaunch.spec.parsers import StorageInterval


def unchanged(value: object) -> object:
    """A value that YAML writes as it is."""
    return value


def limit(seconds: float | str | None) -> str:
    """A time limit: a duration, `auto`, or `off` for None."""
    if isinstance(seconds, str):
        return seconds
    return "off" if seconds is None else format_duration(seconds)


def or_off(number: int) -> object:
    """A number of which 0 means off."""
    return number or "off"


def or_auto(number: int | None) -> object:
    """A number of which None means that the default was taken."""
    return number or "auto"


def path(value: Path | None) -> str | None:
    """A path."""
    return None if value is None else str(value)


def rate(value: float | None) -> str:
    """Bytes a second, or `off` for None."""
    return "off" if value is None else format_rate(value)


def size(value: int | None) -> str:
    """Bytes, or `off` for None."""
    return "off" if value is None else format_rate(value).removesuffix("/s")


def interval(value: StorageInterval) -> object:
    """Steps or time between checkpoints."""
    return value.steps or limit(value.seconds)


def number(value: float) -> str:
    """A number without needless digits."""
    return f"{value:g}"


def node_range(least: int, most: int) -> object:
    """A number of nodes, or MIN:MAX."""
    return least if least == most else f"{least}:{most}"


def items(value: Iterable[str]) -> list[str] | None:
    """A list; None where it is empty."""
    return list(value) or None


def comma_list(value: Iterable[str]) -> str:
    """Words with commas between them."""
    return ",".join(value)


def rules(value: Iterable[FaultRule]) -> list[dict[str, object]] | None:
    """Fault rules; None where there are none."""
    return [rule.row() for rule in value] or None


def targets(value: Iterable[NotifyTarget]) -> list[dict[str, object]] | None:
    """The targets of notices, secrets masked; None where there are none."""
    return [as_spec(target) for target in value] or None
