"""What the pages need so that GitHub and MkDocs show them alike, and what the site promises."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.support.console_blocks import ROOT, blocks

sys.path.insert(0, str(ROOT / "scripts/docs"))

import house
import sentences
import variables

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CONSOLE = [block for page in PAGES for block in blocks(page) if block.kind == "console"]
_ITEM = re.compile(r" *(?:[-*]|\d+\.) ")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"^\| ``(.+?) ?`` \|", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# --- Markdown that both read alike --------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_list_has_an_empty_line_before_it(page: Path) -> None:
    lines = _FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    run_on = []
    in_list = False
    for before, line in zip(["", *lines], lines, strict=False):
        if _ITEM.match(line) and before.strip() and not in_list:
            run_on.append(line)
        in_list = bool(_ITEM.match(line)) or (in_list and bool(line.strip()))
    assert run_on == [], "MkDocs takes these for a part of the paragraph"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_in_a_list_is_indented_by_four_and_ends_with_an_empty_line(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    indents = {len(indent) for indent in re.findall(r"^( *)```", text, re.MULTILINE)}
    assert indents <= {0, 4}, "MkDocs takes a block for a part of an item only where it is indented by four"
    assert re.findall(r"^    ```\n(?=\S).*", text, re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_code_holds_an_escaped_bar(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text(encoding="utf-8")))
    assert [span for span in spans if "\\|" in span] == [], "MkDocs shows the backslash: write <code>A&#124;B</code>"


def test_no_page_holds_a_control_character() -> None:
    """Click marks lines that are to be kept apart with a backspace in the help of a command."""
    assert [name_of(page) for page in PAGES if re.search(r"[\x00-\x08\x0b-\x1f]", page.read_text("utf-8"))] == []


# --- the site -----------------------------------------------------------------------------------------------


def test_every_guide_stands_in_the_table_of_guides() -> None:
    table = (ROOT / "docs/guide/README.md").read_text(encoding="utf-8")
    missing = [page.name for page in sorted((ROOT / "docs/guide").glob("*.md"))
               if page.name != "README.md" and f"({page.name})" not in table]  # fmt: skip
    assert missing == [], "each guide needs its row in docs/guide/README.md, and best a section in mkdocs.yml"


# --- what is typed ------------------------------------------------------------------------------------------


def test_a_block_of_the_console_is_typed_or_says_why_it_is_not() -> None:
    """tests/e2e/test_console_blocks.py types all that have no reason."""
    assert len(CONSOLE) > 30
    for block in CONSOLE:
        if "not run" in block.comments:
            assert len(block.reason.split()) > 3, f"{block.place}: why can this block not run here?"
            named = re.findall(r"tests/[\w/.]+\w", block.reason)
            assert [path for path in named if not (ROOT / path).exists()] == [], block.place
        else:
            assert block.commands or block.more, f"{block.place}: a block without a command"


def test_no_other_block_shows_a_command() -> None:
    """What begins with `$ ` is a console block, so that it is typed."""
    for page in PAGES:
        for kind, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            assert kind == "console" or not re.search(r"^ *\$ ", text, re.MULTILINE), (page, text)


# --- what the program says ----------------------------------------------------------------------------------


def test_every_sentence_of_troubleshooting_stands_in_the_code() -> None:
    quoted = _QUOTED.findall((ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"))
    assert len(quoted) > 40
    assert [sentence for sentence in quoted if not sentences.stands_in_the_code(sentence)] == []
    assert [sentence for sentence in quoted if len(re.sub(r"\W", "", sentence)) < 12] == [], (
        "too short to be told apart"
    )


# refusals of ftctl that say all that could be written of them: the system's own words follow
SAY_IT_ALL = {
    "cannot ask job {}: {}",
    "cannot show job {}: {}: {}",
    "cannot show logs of job {}: {}: {}",
    "job {} is not running: {}",
}


def test_every_refusal_of_ftctl_stands_in_troubleshooting() -> None:
    quoted = _QUOTED.findall((ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"))
    refused = set(sentences.refusals())
    assert len(refused) > 25
    assert {one for one in refused if not any(sentences.quotes(words, one) for words in quoted)} == SAY_IT_ALL


def test_a_sentence_that_is_not_in_the_code_is_found() -> None:
    assert sentences.stands_in_the_code("cannot resume: no checkpoint in ... is usable (see its quarantine/)")
    assert not sentences.stands_in_the_code("cannot resume: no snapshot in ... is usable (see its quarantine/)")
    assert not sentences.stands_in_the_code("cannot resume: no checkpoint at ... is usable")


# texts of the code that look like variables of the environment, and are none that anybody sets for ftlaunch
NO_VARIABLES = {
    "DCP_SHARDING_INFO", "DCP_VERSION", "F8_E4M3", "F8_E5M2", "F8_E8M0",  # of formats of files
    "FOR_ITER", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD", "LOAD_ATTR",
    "LOAD_METHOD", "POP_ITER", "POP_TOP", "RAISE_VARARGS", "RETURN_CONST", "RETURN_VALUE", "YIELD_VALUE",  # of bytecode
    "MULTI_CPU", "MULTI_GPU", "STRICT_SPREAD",  # of other libraries
    "_GLOBAL_RERUN_STATE_MACHINE", "_KERNEL_SEED", "_MEM_FORMAT_ENCODING",  # these, too
    "SC_CLK_TCK", "SC_OPEN_MAX", "SC_PAGE_SIZE",  # of sysconf
    "JE_ARROW_MALLOC_CONF", "MKL_NUM_THREADS",  # how the fork server keeps libraries from starting threads
    # MindSpore's own, which are given to its ranks, or found where msrun has started them
    "DEVICE_ID", "MS_NODE_ID", "MS_ROLE", "MS_SCHED", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER", "MS_WORKER_NUM",
    "RANK_ID", "RANK_SIZE", "RANK_TABLE_FILE",
    "RAY_RAYLET_PID",  # Ray's own, by which an agent finds the raylet that it watches
}  # fmt: skip


def test_every_variable_of_the_product_is_described() -> None:
    """Those of the spec's keys and of the contract are generated; these are read by name in the code."""
    wanted = re.compile(r"_?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
    found = {name for name in sentences.sentences() if wanted.fullmatch(name)}
    assert found - variables.described() == NO_VARIABLES


def test_every_variable_of_one_word_is_described() -> None:
    """Without a `_` only its place tells a variable from another text: `environ["RANK"]`, `os.environ.get("TERM")`."""
    asked = re.compile(r"""environ(?:\.get\(|\.pop\(|\[)"([A-Z]+)\"""")
    code = "".join(path.read_text("utf-8") for source in house.SOURCES.values() for path in source.rglob("*.py"))
    assert len(set(asked.findall(code))) > 2
    assert set(asked.findall(code)) - variables.described() == set()
