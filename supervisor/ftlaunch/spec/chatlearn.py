"""Takes ChatLearn's two settings from where ChatLearn's own configuration has them. Pure.

A user of ChatLearn adds `script:` to an `rlhf.yaml` and launches that file. Its sections are ChatLearn's; only
`data_checkpoint_path` and `enable_resume_training` in them mean something here. ChatLearn writes a value from the
environment as `${NAME:DEFAULT}`; its later versions refer to another of their values as `${runtime_args.output_dir}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ftlaunch.spec.errors import SpecError, shown

SECTIONS = ("runtime", "runtime_args", "rlhf", "runtime_env")
"""may hold the two settings, by ChatLearn's version"""
OTHERS = ("models", "includes")
"""hold nothing that means something here"""
SETTINGS = ("data_checkpoint_path", "enable_resume_training")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)(?::([^{}]*))?\}")
_DEPTH = 10  # references that lead to others


def in_one_level(path: str, content: Mapping[Any, Any], environ: Mapping[str, str]) -> dict[Any, Any]:
    """Return the keys of a job spec with ChatLearn's sections left out, and its two settings beside the others.

    Args:
        path: of the file, for sentences.
        content: what the file holds; where it has no section of ChatLearn's, it is returned as it is.
        environ: the variables that `${NAME}` may refer to.

    Raises:
        SpecError: a setting stands twice, or refers to something that is not there.
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
            found[name] = _filled(path, f"{section}.{name}", values[name], content, environ)
    return found


def _filled(path: str, key: str, value: Any, content: Mapping[Any, Any], environ: Mapping[str, str]) -> Any:
    """Return `value` with its references replaced. Raises SpecError."""
    given = value
    for _ in range(_DEPTH):
        if not isinstance(value, str) or not _REFERENCE.search(value):
            return value
        value = _REFERENCE.sub(lambda match: _meant(path, key, given, match, content, environ), value)
    raise SpecError(f"cannot read {path}: `{key}` is {shown(given)}, which refers to itself; write the value itself")


def _meant(
    path: str, key: str, given: object, match: re.Match[str], content: Mapping[Any, Any], environ: Mapping[str, str]
) -> str:
    name, default = match.groups()
    found: Any = content
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if "." not in name or not isinstance(found, str):
        found = environ.get(name, default)
    if found is None:
        what = f"the variable {name} is not set" if "." not in name else f"the file has no `{name}`"
        raise SpecError(f"cannot read {path}: `{key}` is {shown(given)}; {what}; set it, or write the value itself")
    return str(found)
