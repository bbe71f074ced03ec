"""The rules of the house: folders say what they hold, one name means one class, tests lie where their room lies."""

from __future__ import annotations

import ast
import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "supervisor/ftlaunch", "supervisor/ftlaunch_ray", "worker_hooks/ftlaunch_contract", "worker_hooks/ftlaunch_hooks",
    "worker_hooks/ftlaunch_mindspore",
)  # fmt: skip

# Kits of tests that start processes, or mount: what imports them belongs to tests/proc.
STARTING = {"subprocess", "multiprocessing", "torch.multiprocessing"} | {
    f"tests.support.{kit}" for kit in ("agents", "causes", "disks", "harness", "machines", "ranks")
}


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), name_of(path))


def broken(found: dict[str, str]) -> list[str]:
    """A sentence for each thing that breaks a rule."""
    return [f"{name} {sentence}" for name, sentence in sorted(found.items())]


FOLDERS = [
    folder for package in PACKAGES for folder in (ROOT / package, *(ROOT / package).rglob("*"))
    if folder.is_dir() and folder.name != "__pycache__"
]  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_says_what_it_holds(folder: Path) -> None:
    assert ast.get_docstring(parsed(folder / "__init__.py")), "the __init__.py has no docstring"


def test_one_name_means_one_class() -> None:
    """Private classes aside: their name is read in one file only."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in modules(*PACKAGES):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name_of(path))
    found = {f"class {name}": f"is defined in {', '.join(paths)}" for name, paths in homes.items() if len(paths) > 1}
    assert not (told := broken(found)), "\n".join(told)


def imported(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function; names that it imports from one, too."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_unit_tests_start_no_process() -> None:
    found = {
        name_of(path): f"imports {', '.join(sorted(starting))}: it belongs to tests/proc"
        for path in modules("tests/unit")
        if (starting := imported(path) & STARTING)
    }
    assert not (told := broken(found)), "\n".join(told)
    calls = {
        f"{name_of(path)}:{node.lineno}": f"calls os.{node.func.attr}"
        for path in modules("tests/unit")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
        and node.func.attr in {"fork", "forkpty", "posix_spawn", "system", "popen"}
    }  # fmt: skip
    assert not (told := broken(calls)), "\n".join(told)


def is_assertion(node: ast.AST) -> bool:
    """Whether a node asserts: by `assert`, by pytest's raises, warns or fail, or by calling an `assert_...`."""
    if isinstance(node, ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in ("pytest.raises", "pytest.warns", "pytest.fail") or called.rpartition(".")[2].startswith("assert_")


def test_every_test_asserts_or_calls_what_asserts_by_its_name() -> None:
    found = {
        f"{name_of(path)}:{node.lineno}": f"{node.name} asserts nothing, and calls no `assert_...`"
        for path in modules("tests")
        if path.name.startswith("test_")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(map(is_assertion, ast.walk(node)))
    }
    assert not (told := broken(found)), "\n".join(told)


# Private names of Python, torch and torchtitan that tests need, and that the packages give to things of theirs, too.
FOREIGN = {"_exit", "_indices", "_parameters", "_save", "_sleep", "_values"}


def is_private(name: str) -> bool:
    return name.startswith("_") and name != "_" and not name.endswith("__")


def names_given(tree: ast.AST, *, at_module_level: bool) -> Iterator[str]:
    """The private names of functions, methods, classes and attributes; also of variables where these count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr] if ast.unparse(node.value) in ("self", "cls") else []
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and at_module_level:
            names = [node.id]
        else:
            names = []
        yield from filter(is_private, names)


def names_read(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.ImportFrom, str]]:
    """The private names that are read from an object or a module, also by setattr() and the like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node, alias.name) for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].endswith("attr"):
            for given in node.args[:2]:
                if isinstance(given, ast.Constant) and is_private(name := str(given.value).rpartition(".")[2]):
                    yield node, name


def scripts_in(tree: ast.Module) -> Iterator[ast.Module]:
    """A test, and the scripts that it writes, where they are plain strings."""
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            with contextlib.suppress(SyntaxError):
                yield ast.increment_lineno(ast.parse(node.value), node.lineno - 1)


def test_no_test_reads_a_private_name_of_the_packages() -> None:
    """Assert on what a user of the class sees, pass the collaborator in, or give the thing a public name."""
    theirs = {name for path in modules(*PACKAGES) for name in names_given(parsed(path), at_module_level=True)} - FOREIGN
    found = {
        f"{name_of(path)}:{node.lineno}": f"reads {name}, which is private in the packages"
        for path in modules("tests")
        if not theirs.isdisjoint(re.findall(r"\w+", path.read_text()))  # most files need not be parsed
        for tree in scripts_in(parsed(path))
        for own in [set(names_given(tree, at_module_level=False))]
        for node, name in names_read(tree)
        if name in theirs - own
    }
    assert not (told := broken(found)), "\n".join(told)


def test_a_test_that_is_skipped_for_a_missing_package_says_how_to_get_it() -> None:
    found = {
        f"{name_of(path)}:{node.lineno}": "calls importorskip() without a reason, which says how to get it"
        for path in modules("tests")
        if "importorskip" in path.read_text()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip"
        and "reason" not in {keyword.arg for keyword in node.keywords}
    }  # fmt: skip
    assert not (told := broken(found)), "\n".join(told)


def test_each_unit_test_lies_where_its_room_lies() -> None:
    """tests/unit/<folder> mirrors the packages; hooks and contract have a folder of their own."""
    homes = {
        "hooks": "worker_hooks/ftlaunch_hooks", "contract": "worker_hooks/ftlaunch_contract", "docs": "docs",
        "ray": "supervisor/ftlaunch_ray",
    }  # fmt: skip
    for folder in {path.parent.relative_to(ROOT / "tests/unit") for path in modules("tests/unit")}:
        top, *rest = folder.parts or ("",)
        home = Path(homes[top], *rest) if top in homes else Path("supervisor/ftlaunch", folder)
        assert (ROOT / home).is_dir(), f"tests/unit/{folder} tests no folder of the packages"
