"""What a writer of an unknown word may have meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_ALIKE = 0.75  # of 1: `nope` is not `scope`
_SHORTEST = 3  # letters of a word that one slip may have changed: any two single letters are a slip apart


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known word nearest to `word`, or an empty string."""
    import difflib  # noqa: PLC0415 - few words are unknown; the supervisor stays small

    plain = {name.replace("-", "_").lower(): name for name in known}
    word = word.replace("-", "_").lower()
    begun = [name for name in plain if len(word.strip("_")) > 1 and name.startswith(word)]
    near = begun or difflib.get_close_matches(word, plain, n=1, cutoff=_ALIKE)
    near = near or [name for name in sorted(plain) if len(word) >= _SHORTEST and _one_slip(word, name)]
    return f"; did you mean `{plain[near[0]]}`?" if near else ""


def _one_slip(word: str, name: str) -> bool:
    """Whether one letter is wrong, missing or too many, or two neighbours have changed places."""
    while word and name and word[0] == name[0]:
        word, name = word[1:], name[1:]
    while word and name and word[-1] == name[-1]:
        word, name = word[:-1], name[:-1]
    return max(len(word), len(name)) <= 1 or (len(word) == 2 and word == name[::-1])
