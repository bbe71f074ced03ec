"""The docs say what the code says: generated stretches are fresh, and lists, links, targets and paths are true."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules

import pytest

from ftlaunch.autopsy.client import AUTOPSY_SECONDS
from ftlaunch.cli.options import command
from ftlaunch.health.time_limits import BOUNDS
from ftlaunch.notify.client import DeliveryOutcome
from ftlaunch.policy.states import JobState
from ftlaunch.reporting import events
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.job import NotifyFailed, StopAnnounced
from ftlaunch.spec.keys import default
from ftlaunch.tools.planner.figures import Figures, complete
from ftlaunch.tools.planner.plan import DEFAULT_STORAGE

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts/docs"))

import areas  # noqa: E402
import generate  # noqa: E402
import house  # noqa: E402
import journal  # noqa: E402
import lists  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# where a path in backticks may begin
_BASES = [ROOT, *(ROOT / base for base in ("supervisor/ftlaunch", "worker_hooks", "worker_hooks/ftlaunch_hooks"))]
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_ROOM = re.compile(r"[\w.-]+(/[\w.-]+)+/?")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# --- generated ----------------------------------------------------------------------------------------------


def test_nothing_generated_is_stale() -> None:
    assert generate.stale() == [], "run python scripts/docs/generate.py"


def test_a_stretch_is_replaced_and_a_missing_one_is_an_error() -> None:
    text = "a\n<!-- generated: x -->\nold\n<!-- end: x -->\nb\n"
    once = generate.with_stretch(text, "x", "new")
    assert once == "a\n<!-- generated: x -->\n\nnew\n\n<!-- end: x -->\nb\n"
    assert generate.with_stretch(once, "x", "new") == once
    with pytest.raises(ValueError, match="cannot generate 'y'"):
        generate.with_stretch(text, "y", "new")


def test_every_folder_says_what_lives_there_and_stands_on_a_floor() -> None:
    for package in house.SOURCES:
        for folder in house.folders(package):
            assert house.sentence(folder).endswith("."), folder
    for package in ("ftlaunch", "ftlaunch_hooks"):
        top = house.SOURCES[package]
        standing = {name for row in house.floors(package) for name in row}
        assert standing == {init.parent.name for init in top.glob("*/__init__.py")}


def test_a_folder_without_a_place_in_its_picture_is_an_error() -> None:
    places = {name: place for name, place in areas.TOOLS.places.items() if name != "planner"}
    with pytest.raises(ValueError, match="no place or no folder: planner"):
        areas.drawing(dataclasses.replace(areas.TOOLS, places=places, flows=()))


# --- links, targets, paths ----------------------------------------------------------------------------------


def links(page: Path) -> Iterator[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    commands = re.findall(r"(?:`|^|\$ )make ([a-z- ]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    # more than one space begins the explanation of a command
    assert {word for command in commands for word in command.split("  ")[0].split()} - targets == set()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_every_path_in_backticks_exists(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    made = {name.rstrip("/") for name in read(".gitignore").split()}  # runs/ is there where a job has run
    tops = {path.name for base in _BASES for path in base.iterdir()} - made
    named = [code for code in re.findall(r"`([^`\n]+)`", text) if _ROOM.fullmatch(code) and code.split("/")[0] in tops]
    missing = [code for code in named if not any((base / code).exists() for base in _BASES)]
    assert missing == []


# --- lists --------------------------------------------------------------------------------------------------


def test_the_exit_codes_are_those_of_the_contract() -> None:
    codes = set(lists.exit_codes().values())
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", read("docs/guide/stopping.md"), re.MULTILINE)} == codes
    said = re.search(r"exit codes: ([\d, ]+)", read("docs/api.md"))
    assert said is not None
    assert {int(code) for code in said[1].split(",")} == codes
    told = " ".join(command.get_help(command.make_context("ftlaunch", ["train.py"])).split()).partition("Exit codes: ")[
        2
    ]
    assert {int(code) for code in re.findall(r"(?:^|; )(\d+) ", told)} == codes


def test_the_journal_page_lists_every_event_with_its_fields() -> None:
    modules = [importlib.import_module(f"{events.__name__}.{found.name}") for found in iter_modules(events.__path__)]
    kinds = [kind for module in modules for kind in vars(module).values()]
    defined = {kind.name: kind for kind in kinds
               if isinstance(kind, type) and issubclass(kind, JobEvent) and kind.name}  # fmt: skip
    read_off = {event.name: event.fields for event in journal.events()}
    assert read_off.keys() == defined.keys()
    assert read_off["stop_announced"] == list(StopAnnounced(step=7, front=5).fields())
    outcome = DeliveryOutcome("incident", "hook", "refused", 2, 0.5)
    assert read_off["notify_failed"] == list(NotifyFailed(outcome).fields())


def test_what_is_api_of_a_job_is_what_it_offers() -> None:
    said = re.search(r"Of a `Job` these are API: (.*?)\.\n", read("docs/api.md"), re.DOTALL)
    assert said is not None
    names = {name.rstrip("()") for name in re.findall(r"`([\w()]+)`", said[1])}
    assert names == set(lists.members(house.SOURCES["ftlaunch_hooks"] / "job/job.py", "Job"))


def test_the_dependencies_have_reasons() -> None:
    project = house.tomllib.loads(read("pyproject.toml"))["project"]
    wanted = [re.split(r"[<>=~ \[]", asked)[0] for asked in project["dependencies"]]
    table = read("docs/architecture.md").partition("## Dependencies")[2]
    assert sorted(re.findall(r"^\| ([\w-]+) \| [a-zA-Z]", table, re.MULTILINE)[1:]) == sorted(wanted)
    extras = set(re.findall(r"\(the extra `([\w-]+)`\)", table))
    assert extras == project["optional-dependencies"].keys() - {"example", "dev", "kubernetes", "frameworks"}


def test_what_the_pages_have_pip_install_is_an_extra() -> None:
    asked = [names for page in PAGES for names in re.findall(r"(?:ftlaunch|\.)\[([a-z,]+)\]'", page.read_text("utf-8"))]
    assert len(asked) > 5
    extras = house.tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    assert {extra for names in asked for extra in names.split(",")} <= extras.keys()


def test_decisions_have_a_number_an_area_a_question_and_say_what_was_decided() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    numbers = [page.name[:3] for page in pages]
    assert len(set(numbers)) == len(numbers)
    for number, page in zip(numbers, pages, strict=True):
        head, asked, what = page.read_text(encoding="utf-8").split("\n\n")[:3]
        assert head.startswith(f"# {number}. "), page
        assert re.fullmatch(r"\*[^*]+\*: .+\?", asked), page
        assert what.startswith("**What.** "), page


def test_every_decision_that_is_named_by_its_number_has_a_page() -> None:
    """Links are checked above; the code, and prose, may name the number alone."""
    named = re.compile(r"decisions?[ /]+0*([0-9]{1,3})\b", re.IGNORECASE)
    there = {int(page.name[:3]) for page in (ROOT / "docs/decisions").glob("[0-9]*.md")}
    files = [
        path for folder in ("supervisor", "worker_hooks", "scripts", "tests") for path in (ROOT / folder).rglob("*.py")
    ]
    found = {
        path: {int(number) for number in named.findall(path.read_text(encoding="utf-8"))} for path in [*PAGES, *files]
    }
    assert {name_of(path): gone for path, numbers in found.items() if (gone := numbers - there)} == {}


def test_the_number_of_states_is_right() -> None:
    assert f"one of {len(JobState)} states" in read("docs/architecture.md")


# --- figures ------------------------------------------------------------------------------------------------


def test_the_figures_of_the_readme_stand_in_the_benchmarks() -> None:
    measured = read("README.md").partition("## Measured")[2].partition("## ")[0]
    rows = [line.split("|")[2:] for line in measured.splitlines() if re.match(r"\| [a-z]", line)]
    figures = [cell.strip() for cells in rows for cell in cells if cell.strip()]
    assert len(figures) > 10
    benchmarks = read("docs/benchmarks.md")
    assert [figure for figure in figures if f"| {figure} |" not in benchmarks] == []


def test_the_defaults_of_the_plan_are_those_that_it_says() -> None:
    page = read("docs/guide/plan.md")
    node, fleet = defaults(8), defaults(16384)
    assert f"{node['detect_seconds'] * 1000:g} ms on one node" in row(page, "--detect-seconds")
    assert f"else {fleet['detect_seconds']:g} s" in row(page, "--detect-seconds")
    assert f"{node['restart_seconds']:g} s on one node" in row(page, "--restart-seconds")
    assert f"else {fleet['restart_seconds']:g} s" in row(page, "--restart-seconds")
    assert f"| {fleet['gpu_hours_per_failure']:,.0f} (Llama 3) |" in row(page, "--mtbf-hours")
    assert f"| {fleet['hang_detect_seconds']:g} s |" in row(page, "--hang-detect-seconds")
    assert fleet["hang_detect_seconds"] == BOUNDS["train"][0] + AUTOPSY_SECONDS


def defaults(gpus: int) -> Figures:
    figures = Figures()
    for name, value in (("gpus", gpus), ("state_bytes", 1e12), ("storage_bytes_per_second", 1e9)):
        figures.add(name, value, "given")
    complete(figures)
    return figures


def row(page: str, option: str) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| `{option}`"))


def test_the_default_storage_interval_is_the_same_everywhere() -> None:
    assert default("storage_interval").seconds == DEFAULT_STORAGE
