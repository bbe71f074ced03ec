"""An adapter is called once its framework's module has been imported, and only where the environment asks for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch_hooks.programs import import_hook

ASKED = {import_hook.ASKED: "1"}
TABLE = {"framework_of_a_test.loop": "adapter_of_a_test"}


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a module `loop`, and an adapter that notes what it is called with."""
    package = tmp_path / "framework_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "loop.py").write_text("class Loop: pass\n")
    (tmp_path / "adapter_of_a_test.py").write_text("seen = []\ndef imported(module): seen.append(module.Loop)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("of_a_test")]:
        del sys.modules[name]


def seen() -> list[type]:
    found: list[type] = importlib.import_module("adapter_of_a_test").seen
    return found


def test_it_is_called_behind_the_import_and_once(framework: Path) -> None:
    import_hook.install(ASKED, TABLE)
    assert "adapter_of_a_test" not in sys.modules
    loop = importlib.import_module("framework_of_a_test.loop")
    assert seen() == [loop.Loop]
    assert loop.__spec__.loader is loop.__loader__
    assert type(loop.__loader__).__name__ == "SourceFileLoader"
    importlib.reload(loop)
    assert len(seen()) == 1


def test_a_module_that_is_there_already_is_told_of_at_once(framework: Path) -> None:
    loop = importlib.import_module("framework_of_a_test.loop")
    import_hook.install(ASKED, TABLE)
    assert seen() == [loop.Loop]


def test_unless_it_is_asked_for_nothing_happens(framework: Path) -> None:
    before = list(sys.meta_path)
    import_hook.install({}, TABLE)
    assert sys.meta_path == before


def test_an_adapter_that_cannot_be_imported_is_said(framework: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (framework / "adapter_of_a_test.py").write_text("import no_such_module_anywhere\n")
    import_hook.install(ASKED, TABLE)
    importlib.import_module("framework_of_a_test.loop")
    assert "cannot attach to framework_of_a_test.loop: No module named" in capsys.readouterr().err


@pytest.mark.parametrize("row", import_hook.TABLE.items(), ids=lambda row: str(row[0]))
def test_every_row_names_an_adapter(row: tuple[str, str]) -> None:
    assert callable(importlib.import_module(row[1]).imported)
