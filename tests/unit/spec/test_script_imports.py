"""What a script imports at its top."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.spec.script_imports import imported_by, top_imports


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import datasets, os.path\nimport transformers as t", ("datasets", "transformers")),
        ("from transformers import Trainer, set_seed", ("transformers:Trainer", "transformers:set_seed")),
        ("from a.b import *", ("a.b",)),
        ('"""Says what it does."""\nfrom __future__ import annotations\nimport a', ("a",)),
        ("import a\nimport os\nos.environ['B'] = '1'\nimport b", ("a",)),
        ("import a\nif a:\n    import b\nimport c", ("a",)),
        ("from . import a\nfrom .a import b\nimport c", ("c",)),
        ("import mine\nfrom mine.x import y\nimport a", ("a",)),
        ("import a\nimport a", ("a",)),
        ("import a\nthis is no Python", ()),
        ("import a\x00", ()),
        ("", ()),
    ],
)
def test_imports_before_any_other_statement(source: str, found: tuple[str, ...]) -> None:
    assert top_imports(source.encode(), lambda name: name == "mine") == found


def test_of_a_script_and_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import torch, beside, package.more, third.party\n")
    (tmp_path / "package" / "beside.py").touch()
    monkeypatch.chdir(tmp_path)
    assert imported_by("script", "package/train.py") == ("package.more", "third.party")
    assert imported_by("module", "package.train") == ("beside", "third.party")
    assert imported_by("script", "nowhere.py") == ()
