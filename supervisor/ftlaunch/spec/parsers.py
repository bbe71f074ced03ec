"""Parsers of single settings, which a person wrote in YAML, on the command line or in the environment.

Each parser takes text (`text_list`, `modules` and `text_map` also a list or mapping of YAML) and returns a value. All
parsers raise RefusedError for anything else. They look at nothing but their argument, except that `path` reads the home
directory's name.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ftlaunch.common.durations import parse_duration
from ftlaunch.common.rates import parse_rate, parse_size
from ftlaunch.spec import checkpoint_stores
from ftlaunch.spec.errors import RefusedError
from ftlaunch_contract.protocol import EXIT_BUG, EXIT_SAVED, EXIT_USAGE, scheme_of

_LEAST_SIZE = 1_000_000  # bytes, as a diagnosis reads the end of a log
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ENDPOINT = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[\w.-]+)?\])(:(?P<port>[^:]*))?", re.ASCII)
_JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)

# Variables that the supervisor sets for every rank. A spec that set one would be overruled, or would break the job.
_SET_FOR_RANKS = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
}  # fmt: skip


def any_text(raw: object) -> str:
    """Parse any text, even the empty one, that is possible in a path, an argument or a variable."""
    if not isinstance(raw, str) or not _can_be_passed(raw):
        raise RefusedError
    return raw


def _can_be_passed(text: str) -> bool:
    """Return whether a text can be passed to the kernel."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def text(raw: object) -> str:
    """Parse text that is not empty."""
    if not (value := any_text(raw)).strip():
        raise RefusedError
    return value


def word(raw: object) -> str:
    """Parse text without white space inside."""
    if len((value := text(raw)).split()) != 1:
        raise RefusedError
    return value.strip()


def whole(least: int, most: int = 2**31 - 1) -> Callable[[object], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(raw: object) -> int:
        value = word(raw)
        if not re.fullmatch(r"[0-9]{1,10}", value, re.ASCII) or not least <= int(value) <= most:
            raise RefusedError
        return int(value)

    return parse


def exit_code(raw: object) -> int:
    """Parse the exit code of a job that is given up, which must not have another meaning here or in a shell."""
    code = whole(1, 125)(raw)
    if code in (EXIT_USAGE, EXIT_BUG, EXIT_SAVED):
        raise RefusedError
    return code


def number(raw: object) -> float:
    """Parse a plain number above 0."""
    value = word(raw)
    if not re.fullmatch(r"[0-9]*\.?[0-9]+(e-?[0-9]{1,2})?", value, re.ASCII) or float(value) <= 0:
        raise RefusedError
    return float(value)


def one_of(*choices: str) -> Callable[[object], str]:
    """Return a parser of a choice of words."""

    def parse(raw: object) -> str:
        if (value := word(raw)) not in choices:
            raise RefusedError
        return value

    return parse


def switch(raw: object) -> bool:
    """Parse yes or no, in the usual words."""
    value = word(raw).lower()
    if value not in _TRUE | _FALSE:
        raise RefusedError
    return value in _TRUE


def switch_or_auto(raw: object) -> bool | str:
    """Parse `auto`, or what `switch` takes."""
    return "auto" if raw == "auto" else switch(raw)


def duration(zero: bool = False, least: float = 0.0) -> Callable[[object], float]:
    """Return a parser of durations, to seconds.

    Args:
        zero: whether 0 is allowed.
        least: the shortest duration that is allowed, in seconds.
    """

    def parse(raw: object) -> float:
        try:
            seconds = parse_duration(text(raw))
        except ValueError:
            raise RefusedError from None
        if (seconds == 0 and not zero) or seconds < least:
            raise RefusedError
        return seconds

    return parse


def limit(raw: object) -> float | str | None:
    """Parse a duration above 0 to seconds, `auto` to itself, and `off` to None."""
    if raw == "auto":
        return "auto"
    return None if raw == "off" else duration()(raw)


def steps(raw: object) -> int | str:
    """Parse a whole number of steps, `auto` to itself, and `off` to 0."""
    if raw == "auto":
        return "auto"
    return 0 if raw == "off" else whole(0)(raw)


def whole_or_off(raw: object) -> int:
    """Parse a whole number above 0, and `off` to 0."""
    return 0 if raw == "off" else whole(1)(raw)


def duration_or_off(raw: object) -> float | None:
    """Parse a duration above 0 to seconds, and `off` to None."""
    return None if raw == "off" else duration()(raw)


class StorageInterval(NamedTuple):
    """The interval between checkpoints, in steps or in seconds. At most one is set; if none is, there are none."""

    steps: int | None
    seconds: float | None


def steps_or_seconds(raw: object) -> StorageInterval:
    """Parse a number of steps, a duration, or `off`."""
    if raw == "off":
        return StorageInterval(None, None)
    if re.fullmatch("[0-9]+", word(raw), re.ASCII):
        return StorageInterval(whole(1)(raw), None)
    return StorageInterval(None, duration()(raw))


def bandwidth(raw: object) -> float | None:
    """Parse a rate to bytes a second, and `off` to None."""
    if raw == "off":
        return None
    try:
        return parse_rate(text(raw))
    except ValueError:
        raise RefusedError from None


def workers(raw: object) -> int | str:
    """Parse a number of ranks from 1 on; `auto`, `cpu` and `gpu` to themselves."""
    return str(raw) if raw in ("auto", "cpu", "gpu") else whole(1)(raw)


def threads(raw: object) -> int | str:
    """Parse a whole number from 1 on, and `auto` to itself."""
    return "auto" if raw == "auto" else whole(1)(raw)


def node_range(raw: object) -> tuple[int, int]:
    """Parse `N` or `MIN:MAX` to the least and the most number of nodes."""
    first, colon, second = word(raw).partition(":")
    least = whole(1)(first)
    most = whole(1)(second) if colon else least
    if least > most:
        raise RefusedError("MIN must not be above MAX in MIN:MAX")
    return least, most


class Endpoint(NamedTuple):
    """A host and port at which nodes meet."""

    host: str
    """name or address, without brackets"""
    port: int | None
    """0 for a free port; None for the default port"""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def endpoints(raw: object) -> tuple[Endpoint, ...] | None:
    """Parse `HOST` or `HOST:PORT`, or several with commas between them; the empty text, torchrun's default, to None.

    An IPv6 address stands in brackets.
    """
    return None if raw == "" else tuple(map(_endpoint, word(raw).split(",")))


def _endpoint(given: str) -> Endpoint:
    """Parse `HOST` or `HOST:PORT`."""
    found = _ENDPOINT.fullmatch(given)
    if found is None:
        raise RefusedError("it names no host" if given.startswith(":") else None)
    port = None if found["port"] is None else whole(0, 65535)(found["port"])
    return Endpoint(found["host"].strip("[]"), port)


def port(raw: object) -> int | None:
    """Parse a TCP port; 0, which stands for a free port, to None."""
    return whole(0, 65535)(raw) or None


def job_id(raw: object) -> str:
    """Parse a job id, which is safe as a file name."""
    if not _JOB_ID.fullmatch(value := word(raw)):
        raise RefusedError
    return value


def folder_or_address(raw: object) -> str:
    """Parse a folder, as `path` does, or the address of a checkpoint store."""
    given = text(raw)
    return path(raw) if scheme_of(given) is None else checkpoint_stores.address(given)


def path(raw: object) -> str:
    """Parse a path, and replace `~` by the home directory. No part may be longer than file systems allow."""
    try:
        value = str(Path(text(raw)).expanduser())
    except RuntimeError:
        raise RefusedError("there is no such home directory") from None
    if any(len(os.fsencode(part)) > 255 for part in value.split("/")):
        raise RefusedError("no part of a path can be longer than 255 bytes")
    return value


def step_or_place(raw: object) -> int | str:
    """Parse a step such as `120`, a path such as `/data/run/checkpoints`, or an address; `./120` is a folder."""
    return whole(0)(raw) if re.fullmatch("[0-9]{1,10}", text(raw), re.ASCII) else folder_or_address(raw)


def ranks(raw: object) -> frozenset[int]:
    """Parse ranks with commas between them."""
    return frozenset(whole(0)(part) for part in word(raw).split(","))


def streams(raw: object) -> int | dict[int, int]:
    """Parse torchrun's choice of streams, for all ranks or as `RANK:CHOICE,...`.

    A choice is 0 for none, 1 for stdout, 2 for stderr, or 3 for both.
    """
    choice = whole(0, 3)
    if ":" not in word(raw):
        return choice(raw)
    pairs = (pair.partition(":") for pair in word(raw).split(","))
    return {whole(0)(rank): choice(value) for rank, _, value in pairs}


def signals(raw: object) -> tuple[str, ...]:
    """Parse names of signals that a process can catch, with commas between them."""
    names = tuple(name.strip() for name in text(raw).split(","))
    for name in names:
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise RefusedError
    return names


def text_list(raw: object) -> tuple[str, ...]:
    """Parse a YAML list of texts."""
    if not isinstance(raw, list):
        raise RefusedError
    for index, item in enumerate(raw):
        if not isinstance(item, str) or not _can_be_passed(item):
            raise RefusedError("it must be one word or text; quote it if it must stay so", f"[{index}]", item)
    return tuple(raw)


def modules(raw: object) -> tuple[str, ...]:
    """Parse names of Python modules, in a YAML list or with commas between them."""
    names = text_list(raw) if isinstance(raw, list) else word(raw).split(",")
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise RefusedError
    return tuple(names)


def text_map(raw: object) -> dict[str, str]:
    """Parse a YAML mapping from environment variables to texts."""
    if not isinstance(raw, dict):
        raise RefusedError
    for name, value in raw.items():
        at = f".{name}"
        # A message about a variable's name does not repeat the value, which may be a secret.
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            raise RefusedError("a variable is named with letters, digits and _", at, "set")
        if name in _SET_FOR_RANKS or name.startswith(("TORCHELASTIC_", "FTLAUNCH_")):
            raise RefusedError("ftlaunch itself tells that to the ranks, so leave it out", at, "set")
        if not isinstance(value, str) or not _can_be_passed(value):
            raise RefusedError('it must be text; "" stands for an empty one', at, value)
    return raw


def size_or_off(raw: object) -> int | None:
    """Parse a size of a million bytes or more, and `off` to None."""
    if raw == "off":
        return None
    try:
        size = int(parse_size(text(raw)))
    except ValueError:
        raise RefusedError from None
    if size < _LEAST_SIZE:
        raise RefusedError
    return size
