"""Renders the page as one HTML document with styles, scripts and data inlined, which fetches nothing, and writes it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ftlaunch.views.report_page.data import encoded, page_data

NAME = "report.html"
_SCRIPTS = ("base.js", "view.js", "timeline.js", "charts.js", "tables.js", "incidents.js", "page.js")
_STATIC = files("ftlaunch.views.report_page") / "static"


def write_page(run_dir: Path, path: Path) -> int:
    """Write the page of a run dir to `path`, readable only by its owner, and return its size in bytes.

    A reader sees either the old page or the new page, whole.

    Raises:
        OSError: the journal cannot be read, or the page cannot be written.
        NoEvents: the journal has no whole event.
    """
    document = render(page_data(run_dir)).encode()
    fd, written = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(document)
        Path(written).replace(path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            Path(written).unlink()
        raise
    return len(document)


def render(data: Mapping[str, Any], *, live: bool = False) -> str:
    """Render the document.

    The content security policy allows only the inlined scripts and styles, by their hashes.

    Args:
        data: the data of the page.
        live: whether the document loads `live.js` from its own server, which may then ask the server for news.
    """
    style = _text("page.css")
    script = "\n".join(['"use strict";', "(() => {", *map(_text, _SCRIPTS), "})();"])
    server, connect = (" 'self'", "'self'") if live else ("", "'none'")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}{server}; img-src data:;"
        f" connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": escape(policy),
        "title": escape(f"{data['job']['id']}: report of ftlaunch"),
        "style": style,
        "script": script,
        "live": '<script src="live.js" defer></script>' if live else "",
        "data": encoded(data).decode(),
    }
    document = _text("page.html")
    before, *rest = document.split("{{")
    for piece in rest:  # inserted text is never searched for placeholders
        name, _, after = piece.partition("}}")
        before += parts[name] + after
    return before


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
