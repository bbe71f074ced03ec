"""Hooks of MkDocs: the pages of `docs/` keep the links that GitHub needs, and the site holds what they lead to.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages of the site, README.md the first one. A file or folder outside
`docs/` that a page links to becomes a page below `source/`: a file with its text, a folder with a list of its files.
MkDocs calls the functions `on_*`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
TOP_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
MORE = "More guides"
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCED = re.compile(r"(^[ ]*```.*?^[ ]*```[ ]*$)", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".toml": "toml"}
_HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"
_FENCE = "``````"


def on_config(config: MkDocsConfig) -> None:
    """Complete the sections: guides that none names, and the decisions of each area."""
    assert config.nav is not None
    nav: list[Any] = config.nav
    docs = Path(config.docs_dir)
    named = set(_named(nav))
    more = [name for name in _pages_of(docs, "guide/*.md") if name not in named]
    if more:
        nav.insert(next(i for i, part in enumerate(nav) if _title(part) == "Troubleshooting"), {MORE: more})
    section = next(part["How it works"] for part in nav if _title(part) == "How it works")
    at = section.index("decisions/README.md")
    index = (docs / "decisions/README.md").read_text(encoding="utf-8")
    areas: dict[str, list[str]] = {area: [] for area in re.findall("^## (.*)$", index, re.MULTILINE)}
    for name in _pages_of(docs, "decisions/[0-9]*.md"):
        areas[(docs / name).read_text(encoding="utf-8").split("*", 2)[1]].append(name)
    section[at] = {"Decisions": ["decisions/README.md", *({area: pages} for area, pages in areas.items())]}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that come from outside `docs/`."""
    for name, page in TOP_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    outside = {target for file in files.documentation_pages() for target in _targets(file) if _page_of(target)}
    for target in sorted(outside):
        if target.as_posix() not in TOP_PAGES:
            files.append(File.generated(config, _page_of(target), content=_HIDDEN + _shown(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links as the site needs them."""
    here = _path_of(page.file)
    if here is None:
        return markdown
    parts = _FENCED.split(markdown)
    return "".join(part if _FENCED.fullmatch(part) else _with_links(part, here, page.file.src_uri) for part in parts)


def _with_links(text: str, here: Path, page: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        target = _target(found[2], here)
        if target is None:
            return found[0]
        place = _page_of(target) or target.relative_to("docs").as_posix()
        anchor = found[2].partition("#")[2]
        link = os.path.relpath(place, Path(page).parent)
        return f"{found[1]}{link}{'#' if anchor else ''}{anchor}{found[3]}"

    return _LINK.sub(replaced, text)


def _targets(file: File) -> Iterator[Path]:
    """Yield the paths, from the top of the repository, to which the links of a page lead."""
    here = _path_of(file)
    if here is not None:
        for found in _LINK.finditer(_FENCED.sub("", file.content_string)):
            target = _target(found[2], here)
            if target is not None:
                yield target


def _target(link: str, here: Path) -> Path | None:
    """Return where a link of the file `here` leads, from the top of the repository; None if the link is no path."""
    path = link.partition("#")[0]
    if not path or re.match("[a-z]+:", path):
        return None
    target = Path(os.path.normpath(here.parent / path))
    return target if (ROOT / target).exists() else None  # MkDocs reports links to missing files


def _page_of(target: Path) -> str:
    """Return the page that a path outside `docs/` becomes; empty for a path in `docs/`."""
    name = target.as_posix()
    return "" if name.startswith("docs/") else TOP_PAGES.get(name, f"source/{name}.md")


def _path_of(file: File) -> Path | None:
    """Return the file of a page, from the top of the repository; None for a page below source/."""
    top = {page: name for name, page in TOP_PAGES.items()}
    if file.src_uri.startswith("source/"):
        return None
    return Path(top.get(file.src_uri, f"docs/{file.src_uri}"))


def _shown(target: Path) -> str:
    """Return a page that shows a file, or what is in a folder."""
    path = ROOT / target
    name = target.as_posix()
    if path.is_dir():
        rows = [f"| `{inner.name}{'/' * inner.is_dir()}` | {_first_line(inner)} |" for inner in sorted(path.iterdir())
                if inner.name not in ("__pycache__", "__init__.py")]  # fmt: skip
        return "\n".join([f"# {name}/", "", "| file | what is in it |", "| --- | --- |", *rows, ""])
    language = _LANGUAGES.get(path.suffix, "text")
    return f"# {name}\n\n{_FENCE}{language}\n{path.read_text(encoding='utf-8').rstrip()}\n{_FENCE}\n"


def _first_line(path: Path) -> str:
    """Return the first line of the docstring of a module or package."""
    path = path / "__init__.py" if path.is_dir() else path
    if path.suffix != ".py" or not path.exists():
        return ""
    docstring = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    return docstring.partition("\n")[0].replace("|", "\\|").replace("<", "&lt;")


def _pages_of(docs: Path, pattern: str) -> list[str]:
    return [path.relative_to(docs).as_posix() for path in sorted(docs.glob(pattern)) if path.name != "README.md"]


def _title(part: Any) -> str:
    return next(iter(part)) if isinstance(part, dict) else str(part)


def _named(nav: list[Any]) -> Iterator[str]:
    """Yield every page that the sections name."""
    for part in nav:
        if isinstance(part, dict):
            for inner in part.values():
                yield from _named(inner if isinstance(inner, list) else [inner])
        else:
            yield part
