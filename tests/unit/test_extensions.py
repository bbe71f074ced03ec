"""Every name of the table extensions.py leads to something: names in strings do not follow a move by themselves."""

from __future__ import annotations

from importlib.util import find_spec

import click
import pytest

from ftlaunch import extensions

NAMES = {name: said for name, said in vars(extensions).items() if name.isupper() and isinstance(said, str)}
CALLED = {name: said for name, said in NAMES.items() if ":" in said}
PROGRAMS = {name: said for name, said in NAMES.items() if ":" not in said}


@pytest.mark.parametrize("word", extensions.COMMANDS)
def test_each_word_of_commands_is_the_name_of_its_command(word: str) -> None:
    command = extensions.load(extensions.COMMANDS[word])
    assert isinstance(command, click.Command)
    assert command.name == word


@pytest.mark.parametrize("name", CALLED)
def test_what_the_core_calls_is_there(name: str) -> None:
    assert extensions.load(CALLED[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_can_be_started_by_its_name(name: str) -> None:
    """As `python -m` does it: a package is started by its __main__. Nothing is imported here."""
    found = find_spec(PROGRAMS[name])
    assert found is not None
    if found.submodule_search_locations is not None:
        assert find_spec(f"{PROGRAMS[name]}.__main__") is not None
