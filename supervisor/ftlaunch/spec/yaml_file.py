"""Reads and writes job specs in YAML. Every plain word stays text as it was written; keys are known, and none twice."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ftlaunch.spec import chatlearn
from ftlaunch.spec.errors import SpecError, did_you_mean, shown
from ftlaunch.spec.keys import YAML_KEYS

_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
_KNOWN = {_NULL, *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))}


class _Loader(yaml.SafeLoader):
    """A safe loader that guesses no types: YAML 1.1 would make `off` False, `1:1` 61 and `010` 8."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it so
        first: [(tag, regexp) for tag, regexp in resolvers if tag in (_MERGE, _NULL)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    # Other constructors are left out, so that `!!timestamp x` is refused like any tag. PyYAML's own code would crash.
    yaml_constructors = {  # noqa: RUF012 - as above
        tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag in _KNOWN
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping. Raises SpecError if a key occurs twice, which PyYAML would accept."""
        lines: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                first = lines[key.value]
                where = f"on line {line}" if first == line else f"on lines {first} and {line}"
                raise SpecError(f"cannot read {self.name}: `{key.value}` stands twice, {where}")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """A dumper for `_Loader`, which needs no quotes around words that other loaders would take for numbers."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def spec_text(raws: Mapping[str, object]) -> str:
    """Return a job spec as the text of a file. `read_spec_file` returns the same keys again.

    Args:
        raws: what was written for each key.
    """
    return yaml.dump(dict(raws), Dumper=_Dumper, sort_keys=False, default_flow_style=False)


def read_spec_file(path: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read a job spec, and return what was written for each key: a text, a list or a mapping.

    A key that is null is left out if null is its default.

    Args:
        path: path of the file.
        environ: the variables to which ChatLearn's settings may refer.

    Raises:
        SpecError: the file cannot be read, or is no job spec.
    """
    content = _load(path)
    if content is None:
        raise SpecError(f"cannot read {path}: it is empty; name at least a `script`, `module` or `program`")
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else "plain text"
        raise SpecError(f"cannot read {path}: it is {kind}, not a mapping of keys such as `script: train.py`")
    content = chatlearn.in_one_level(path, content, environ)
    for name in content:
        if name not in YAML_KEYS:
            raise _unknown_key(path, name)
    return {name: raw for name, raw in content.items() if raw is not None or YAML_KEYS[name].default is not None}


def _load(path: str) -> object:
    """Return the contents of a YAML file. Raises SpecError."""
    loader = None
    try:
        # utf-8-sig, because editors on other systems begin a file with a byte order mark
        loader = _Loader(Path(path).read_text(encoding="utf-8-sig"))
        loader.name = path
        return loader.get_single_data()
    except UnicodeDecodeError:
        raise SpecError(f"cannot read {path}: it is not UTF-8 text") from None
    except OSError as error:
        raise SpecError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except yaml.constructor.ConstructorError as error:
        raise SpecError(f"cannot read {path}: {_describe_unconstructed(error)}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"cannot read {path}: it is not YAML{_describe_place(error)}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _describe_unconstructed(error: yaml.constructor.ConstructorError) -> str:
    """Say what in a YAML file cannot become a value, and where."""
    line = error.problem_mark.line + 1 if error.problem_mark else 0
    if "constructor for the tag" in (error.problem or ""):
        return f"line {line} has a `!` tag; a spec holds plain text, lists and mappings, never objects"
    return f"line {line}: {error.problem}"


def _describe_place(error: Exception) -> str:
    """Say where a file is not YAML, as the end of a sentence."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f" at line {mark.line + 1}, column {mark.column + 1}: {' '.join(str(error.problem).split())}"
    if isinstance(error, yaml.reader.ReaderError):
        return f": character {error.position + 1} is not printable"
    return ": it is nested too deeply"


def _unknown_key(path: str, name: object) -> SpecError:
    """Return the error for a key that does not exist."""
    hint = did_you_mean(str(name), YAML_KEYS) or f"; the keys are {', '.join(YAML_KEYS)}"
    return SpecError(f"cannot read {path}: `{shown(name)}` is not a key{hint}")
