"""Reads two settings from the sections of ChatLearn's own configuration files. Pure.

A user of ChatLearn adds `script:` to an `rlhf.yaml` and launches that file. The sections of the file are ChatLearn's;
only `data_checkpoint_path` and `enable_resume_training` in them have a meaning here. ChatLearn writes a value from the
environment as `${NAME:DEFAULT}`; later versions refer to another value of the file as `${runtime_args.output_dir}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ftlaunch.spec.errors import SpecError, shown

SECTIONS = ("runtime", "runtime_args", "rlhf", "runtime_env")
"""names of the sections that may hold the two settings, depending on ChatLearn's version"""
OTHERS = ("models", "includes")
"""names of ChatLearn's sections without a meaning here"""
SETTINGS = ("data_checkpoint_path", "enable_resume_training")
"""names of the two settings"""
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)(?::([^{}]*))?\}")
_DEPTH = 10  # references to values that are references themselves


def in_one_level(path: str, content: Mapping[Any, Any], environ: Mapping[str, str]) -> dict[Any, Any]:
    """Return the contents of a job spec without ChatLearn's sections, and with its two settings at the top level.

    Args:
        path: path of the file, for error messages.
        content: contents of the file, which are returned unchanged if they have none of ChatLearn's sections.
        environ: the variables to which `${NAME}` may refer.

    Raises:
        SpecError: a setting occurs twice, or refers to something that does not exist.
    """
    sections = {name: content[name] for name in SECTIONS if isinstance(content.get(name), Mapping)}
    found = {name: value for name, value in content.items() if name not in sections}
    if not sections:
        return found
    found = {name: value for name, value in found.items() if name not in OTHERS}
    places = dict.fromkeys(set(SETTINGS) & set(content), "the top level")
    for section, values in sections.items():
        for name in SETTINGS:
            if name not in values:
                continue
            if name in places:
                raise SpecError(f"cannot read {path}: `{name}` stands twice, at {places[name]} and in `{section}`")
            places[name] = f"`{section}`"
            found[name] = _fill(values[name], path=path, key=f"{section}.{name}", content=content, environ=environ)
    return found


def _fill(value: Any, *, path: str, key: str, content: Mapping[Any, Any], environ: Mapping[str, str]) -> Any:
    """Return `value` with its references replaced.

    Raises:
        SpecError: a reference leads to nothing, or in a circle.
    """
    given = value

    def replacement(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = _resolve(name, default, content=content, environ=environ)
        if found is None:
            what = f"the variable {name} is not set" if "." not in name else f"the file has no `{name}`"
            raise SpecError(f"cannot read {path}: `{key}` is {shown(given)}; {what}; set it, or write the value itself")
        return found

    for _ in range(_DEPTH):
        if not isinstance(value, str) or not _REFERENCE.search(value):
            return value
        value = _REFERENCE.sub(replacement, value)
    raise SpecError(f"cannot read {path}: `{key}` is {shown(given)}, which refers to itself; write the value itself")


def _resolve(name: str, default: str | None, *, content: Mapping[Any, Any], environ: Mapping[str, str]) -> str | None:
    """Return the text to which a reference leads: a dotted name in the file, else a variable, else the default."""
    found: Any = content
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if "." not in name or not isinstance(found, str):
        return environ.get(name, default)
    return found
