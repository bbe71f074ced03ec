"""What a writer of an unknown word may have meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known word nearest to `word`, or an empty string."""
    import difflib  # noqa: PLC0415 - few words are unknown; the supervisor stays small

    plain = {name.replace("-", "_").lower(): name for name in known}
    word = word.replace("-", "_").lower()
    begun = [name for name in plain if len(word.strip("_")) > 1 and name.startswith(word)]
    near = begun or difflib.get_close_matches(word, plain, n=1)
    return f"; did you mean `{plain[near[0]]}`?" if near else ""
