"""Makes texts of a job fit for the page: without secrets and control characters, and of bounded length."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ftlaunch.common.formatting import printable
from ftlaunch.common.masking import masked_text, secret_values

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HALF_A_LINE = re.compile(r"\A[^\r\n]*(\r\n?|\n|\Z)")


class SafeText:
    """Makes texts of one job fit for the page. Secrets of this process's environment are masked as well."""

    def __init__(self, args: Sequence[str]) -> None:
        """Find the secrets to mask. args: words of the job's command, which may hold secrets."""
        self._secrets = secret_values(os.environ, args)

    def line(self, text: object, most: int = 2000) -> str:
        """Return a text as one line of at most `most` characters."""
        return self._fit(" ".join(str(text).split()), most)

    def lines(self, text: str, most_lines: int, most: int = 4000) -> list[str]:
        """Return the last lines of a text.

        A cut text begins with a whole line, because the masking needs what comes before a secret, such as `token=`.

        Args:
            text: the text.
            most_lines: most lines to return.
            most: most characters to return.
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
