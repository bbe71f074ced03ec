"""A group of commands whose first word, a place, may be left out."""

from __future__ import annotations

from pathlib import Path

import click

from ftlaunch.common.suggestions import did_you_mean


class PlaceFirst(click.Group):
    """`ftctl checkpoints verify` and `ftctl nodes forgive` mean the only run in ./runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [word for word in args if not word.startswith("-")]
        if words and words[0] in self.commands and not Path(words[0]).is_dir():
            args = ["", *args]
        elif len(words) > 1 and (meant := did_you_mean(words[1], self.commands)) and words[1] not in self.commands:
            ctx.fail(f"no such command {words[1]!r}{meant}")
        elif not set(words[1:]) & set(self.commands):
            ctx.allow_interspersed_args = True  # DIR --json, as well as --json DIR
        return super().parse_args(ctx, args)
