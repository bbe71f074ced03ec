"""Pictures of the docs load nothing when they are shown: they show with the network unplugged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.pictures import loaded_by, offline

DOCS = Path(__file__).parents[3] / "docs"
FONT = "@font-face {\n font-family: 'A';\n src: local('A'), url('https://example.org/a.woff2') format('woff2');\n}\n"


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_picture_names_no_address_that_it_loads_from(path: Path) -> None:
    assert loaded_by(path.read_text()) == []


def test_what_loads_is_found_and_fonts_are_taken_out() -> None:
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg"><style>{FONT}.a {{ font-family: Fira Code, x; }}</style><text/></svg>'
    )
    assert len(loaded_by(svg)) == 1
    assert loaded_by(offline(svg)) == []
    assert ".a { font-family: monospace; }" in offline(svg)
    for loads in (
        '<image href="//example.org/a.png"/>',
        "@import 'https://example.org/a.css'",
        '<img src="http://a/b"/>',
    ):
        assert len(loaded_by(loads)) == 1
