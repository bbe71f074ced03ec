"""Recipes of the guide: the commands of a block, as they stand, with a user's own names in the place of examples."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.console_blocks import ROOT, blocks


def recipe(page: str, word: str, values: Mapping[str, str]) -> str:
    """Return the commands of a block as a script of a shell.

    Args:
        page: the name of a page of the guide.
        word: a word that the commands of this block alone have.
        values: what is an example on the page, and must occur in the block -> what stands there for this user.
    """
    found = [block for block in blocks(ROOT / "docs/guide" / page) if any(word in one.line for one in block.commands)]
    assert len(found) == 1, f"{word!r} is in {len(found)} blocks of {page}"
    script = "".join(f"{command.line}\n" for command in found[0].commands)
    for example, value in values.items():
        assert example in script, f"the recipe in {found[0].place} has no {example!r}"
        script = script.replace(example, value)
    return script
