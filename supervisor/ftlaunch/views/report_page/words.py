"""Texts that come from a job, made fit for the page: no secrets, no control characters, no more than a bound."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ftlaunch.common.formatting import printable
from ftlaunch.common.masking import masked_text, secret_values

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HALF_A_LINE = re.compile(r"\A[^\r\n]*(\r\n?|\n|\Z)")


class SafeText:
    """Masks what the environment holds of secrets, too."""

    def __init__(self, args: Sequence[str]) -> None:
        """args: of the job's command."""
        self._secrets = secret_values(os.environ, args)

    def line(self, text: object, most: int = 2000) -> str:
        """One line."""
        return self._fit(" ".join(str(text).split()), most)

    def lines(self, text: str, most_lines: int, most: int = 4000) -> list[str]:
        """The last lines of a text.

        A text that is cut begins at a whole line: what stood before half a line is not known, `token=` for one.
        """
        if len(text) > 4 * most:
            text = _HALF_A_LINE.sub("", text[-4 * most :], count=1)
            text = text or f"[the last line is left out: it is longer than {4 * most} characters]"
        whole = masked_text(_COLOUR.sub("", text), self._secrets)
        rows = [printable(row.rstrip("\r")) for row in whole.split("\n")]
        while rows and not rows[-1].strip():
            rows.pop()
        kept: list[str] = []
        for row in reversed(rows[-most_lines:]):
            most -= len(row) + 1
            if most < 0:
                break
            kept.append(row)
        return kept[::-1] or [f"[...] {row[-400:]}" for row in rows[-1:]]

    def _fit(self, text: str, most: int) -> str:
        fit = printable(masked_text(text[: 2 * most], self._secrets))
        return fit if len(fit) <= most else f"{fit[:most]} [...]"
