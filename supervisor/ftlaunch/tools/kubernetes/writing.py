"""Writes documents as the YAML text of a manifest. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Writer(yaml.SafeDumper):
    """A safe YAML dumper that writes text of several lines as a block, and never writes anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(writer: _Writer, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _text)


def manifest(documents: Iterable[dict[str, Any]]) -> str:
    """Return the YAML text of the documents, in their order."""
    return yaml.dump_all(
        documents, Dumper=_Writer, sort_keys=False, default_flow_style=False, width=120, explicit_start=True
    )
