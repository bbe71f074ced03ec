"""How adapters refuse."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ftlaunch_hooks.adapters import auto_attach
from ftlaunch_hooks.adapters.refusal import check_members, pop_replicated


def test_what_has_moved_in_a_framework_is_named() -> None:
    check_members(SimpleNamespace(one=1, two=2), "one two", "Framework 3")
    with pytest.raises(RuntimeError, match="cannot attach: SimpleNamespace has no `two`, which Framework 3 has"):
        check_members(SimpleNamespace(one=1), "one two", "Framework 3")


def test_groups_of_ranks_beside_an_adapters_own_names_are_refused() -> None:
    """Taken out: the list of a mapping's names would say that all ranks have alike what a group has."""
    more = {"replicated": ["policy"], "policy": object()}
    assert pop_replicated(more) == ["policy"]
    assert list(more) == ["policy"]
    with pytest.raises(RuntimeError, match="cannot attach: replicated tells of groups of ranks"):
        pop_replicated({"replicated": {"policy": lambda _: [0, 1]}})


@pytest.mark.parametrize("value", [None, "0", ""])
def test_nothing_is_attached_to_a_script_unless_it_was_asked_for(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FTLAUNCH_AUTO_ATTACH", raising=False)
    if value is not None:
        monkeypatch.setenv("FTLAUNCH_AUTO_ATTACH", value)
    assert auto_attach.lightning_callbacks() == []
