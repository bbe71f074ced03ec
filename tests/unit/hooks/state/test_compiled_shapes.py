"""Code that was compiled anew for another length is told of at a resume; other compiled code is not."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from types import ModuleType, SimpleNamespace

import pytest

from ftlaunch_hooks.state.compiled_shapes import NAME, CompiledShapes


def given(monkeypatch: pytest.MonkeyPatch, reasons: list[str | None]) -> ModuleType:
    """A torch._dynamo.utils that has compiled code for these reasons."""
    utils = ModuleType("torch._dynamo.utils")
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    counters["frames"]["total"] = len(reasons)
    metrics = [SimpleNamespace(recompile_reason=reason) for reason in reasons]
    vars(utils).update(counters=counters, get_compilation_metrics=lambda: metrics)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    return utils


@pytest.mark.parametrize(
    ("reasons", "seen"),
    [
        ([], False),
        ([None, None], False),
        ([None, "0/0: GLOBAL_STATE changed: grad_mode"], False),
        ([None, "0/0: tensor 'args[0]' size mismatch at index 1. expected 8, actual 57"], True),
    ],
)
def test_what_torch_has_compiled_code_anew_for(
    monkeypatch: pytest.MonkeyPatch, reasons: list[str | None], seen: bool
) -> None:
    given(monkeypatch, reasons)
    assert CompiledShapes().collect() == ({"kind": NAME, "seen": True} if seen else {})


def test_it_is_told_in_the_process_that_resumes_and_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, [None])
    shapes = CompiledShapes()
    shapes.resume({}, should_log=True)
    assert capfd.readouterr() == ("", "")
    shapes.resume({"kind": NAME, "seen": True}, should_log=True)
    assert "may differ in the last bits" in "".join(capfd.readouterr())
    assert shapes.collect()["seen"]


def test_a_torch_without_such_counters_has_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", ModuleType("torch._dynamo.utils"))
    assert CompiledShapes().collect() == {}
