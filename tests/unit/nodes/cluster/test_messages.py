"""Every message is checked before anything is done with it."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.nodes.cluster.messages import DOWN, UP, check

EXAMPLES: dict[type, Any] = {int: 1, str: "text", list: [], dict: {}, float: 0.5}
WRONG: dict[type, Any] = {int: "1", str: 1, list: {}, dict: [], float: "0.5"}
TABLES = {"up": UP, "down": DOWN}


def message(table: str, name: str) -> dict[str, Any]:
    return {"do": name, **{field: EXAMPLES[kinds[0]] for field, kinds in TABLES[table][name].items()}}


@pytest.mark.parametrize("table", TABLES)
def test_what_is_as_it_should_be_passes(table: str) -> None:
    for name in TABLES[table]:
        assert check(message(table, name), TABLES[table]) == name


@pytest.mark.parametrize("table", TABLES)
def test_each_field_must_be_there_and_of_its_kind(table: str) -> None:
    for name, fields in TABLES[table].items():
        for field, kinds in fields.items():
            whole = message(table, name)
            for wrong in (WRONG[kinds[0]], None, True):
                with pytest.raises(
                    ValueError, match=f"a message `{name}` whose `{field}` is {wrong!r}".replace("[]", ".*")
                ):
                    check({**whole, field: wrong}, TABLES[table])
            del whole[field]
            with pytest.raises(ValueError, match=f"`{field}` is None"):
                check(whole, TABLES[table])


@pytest.mark.parametrize("name", [None, 1, [], {}, "", "nothing", "spawn"])
def test_what_an_agent_does_not_say(name: object) -> None:
    with pytest.raises(ValueError, match="a message of an unknown kind"):
        check({"do": name}, UP)


def test_a_time_may_be_a_whole_number() -> None:
    assert check({**message("up", "beat"), "now": 12}, UP) == "beat"
