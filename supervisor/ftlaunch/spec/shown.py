"""Writes values of a JobSpec as a job spec has them, so that reading them again gives the same values. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ftlaunch.common.durations import format_duration
from ftlaunch.common.rates import format_rate
from ftlaunch.policy.fault_rules import FaultRule
from ftlaunch.spec.notify_targets.notify_target import NotifyTarget, as_spec
from ftlaunch.spec.parsers import StorageInterval


def unchanged(value: object) -> object:
    """Return a value that YAML can hold as it is."""
    return value


def limit(seconds: float | str | None) -> str:
    """Write a time limit in seconds as a duration, `auto` as itself, and None as `off`."""
    if isinstance(seconds, str):
        return seconds
    return "off" if seconds is None else format_duration(seconds)


def or_off(number: int) -> object:
    """Write a number, and 0 as `off`."""
    return number or "off"


def or_auto(number: int | None) -> object:
    """Write a number, and None as `auto`."""
    return number or "auto"


def path(value: Path | None) -> str | None:
    """Write a path, and None as null."""
    return None if value is None else str(value)


def rate(value: float | None) -> str:
    """Write bytes a second as a rate, and None as `off`."""
    return "off" if value is None else format_rate(value)


def size(value: int | None) -> str:
    """Write bytes as a size, and None as `off`."""
    return "off" if value is None else format_rate(value).removesuffix("/s")


def interval(value: StorageInterval) -> object:
    """Write the interval between checkpoints as steps, as a duration, or as `off`."""
    return value.steps or limit(value.seconds)


def number(value: float) -> str:
    """Write a number without needless digits."""
    return f"{value:g}"


def node_range(least: int, most: int) -> object:
    """Write a range of nodes as a number or as MIN:MAX."""
    return least if least == most else f"{least}:{most}"


def items(value: Iterable[str]) -> list[str] | None:
    """Write a list, and an empty one as null."""
    return list(value) or None


def comma_list(value: Iterable[str]) -> str:
    """Write words with commas between them."""
    return ",".join(value)


def rules(value: Iterable[FaultRule]) -> list[dict[str, object]] | None:
    """Write fault rules as mappings, and no rules as null."""
    return [rule.row() for rule in value] or None


def targets(value: Iterable[NotifyTarget]) -> list[dict[str, object]] | None:
    """Write the targets of notices with masked secrets, and no targets as null."""
    return [as_spec(target) for target in value] or None
