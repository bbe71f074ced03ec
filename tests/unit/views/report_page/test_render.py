"""The page as a document: nothing that a job has said is executed, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from tests.support.run_dirs import failed, run_dir, started

from ftlaunch.views.report_page.data import page_data
from ftlaunch.views.report_page.render import render, write_page

EVIL = "</script><script>alert(1)</script><!-- \u2028 {{script}} & \" ' <img src=x onerror=alert(1)>"


def evil(tmp_path: Path) -> dict[str, Any]:
    begun = started(job_id=EVIL, command=[EVIL], host=EVIL, run_dir=EVIL)
    return page_data(run_dir(tmp_path, [*begun, *failed(100, 5, sentence=EVIL, cause=EVIL, kind=EVIL, trace=EVIL)]))


def policy(document: str) -> dict[str, str]:
    [found] = re.findall(r'Content-Security-Policy" content="([^"]*)"', document)
    rules = (rule.strip().partition(" ") for rule in found.replace("&#x27;", "'").split(";"))
    return {name: value for name, _, value in rules}


def test_what_a_job_says_stays_text(tmp_path: Path) -> None:
    """Taken out (the escaping of `<`): the job's name ended the element of the data, and its script ran."""
    data = evil(tmp_path)
    document = render(data)
    assert document.count("<script") == document.count("</script>") == 2
    assert "<img" not in document
    [told] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert json.loads(told) == json.loads(json.dumps(data))
    assert "<title>&lt;/script&gt;" in document


def test_only_its_own_script_and_style_may_run(tmp_path: Path) -> None:
    document = render(evil(tmp_path))
    rules = policy(document)
    assert rules["default-src"] == "'none'"
    for name, element in (("script-src", "script"), ("style-src", "style")):
        [text] = re.findall(rf"<{element}>(.*?)</{element}>", document, re.DOTALL)
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert "live.js" not in document
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', document) == []


def test_the_scripts_make_no_html_of_text() -> None:
    static = Path(__file__).parents[4] / "supervisor/ftlaunch/views/report_page/static"
    scripts = "".join(path.read_text() for path in static.glob("*.js"))
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", scripts) == []
    assert scripts.count("\n") < 1000


def test_a_live_page_loads_what_brings_news(tmp_path: Path) -> None:
    document = render(evil(tmp_path), live=True)
    assert '<script src="live.js" defer></script>' in document
    assert policy(document)["connect-src"] == "'self'"
    assert policy(document)["script-src"].endswith(" 'self'")


def test_a_page_replaces_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    made = run_dir(tmp_path, started())
    page = made / "report.html"
    page.write_text("old")
    assert write_page(made, page) == page.stat().st_size
    assert page.read_text().startswith("<!doctype html>")
    assert page.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in made.iterdir()) == ["events.jsonl", "report.html"]
