"""Suggests the known word that the writer of an unknown word may have meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_SIMILARITY = 0.75  # least ratio of difflib; `nope` must not suggest `scope`
_SHORTEST = 3  # letters of a word in which one slip is looked for; any two single letters are one slip apart


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the known word nearest to `word`, or an empty string if none is near.

    Words that begin with `word` come first, then similar words, then words that differ by one slip. Case, and the
    difference between `-` and `_`, are ignored.
    """
    import difflib  # noqa: PLC0415 - unknown words are rare, and the supervisor's memory stays small

    originals = {name.replace("-", "_").lower(): name for name in known}
    word = word.replace("-", "_").lower()
    near: list[str] = []
    if len(word.strip("_")) > 1:
        near = [name for name in originals if name.startswith(word)]
    if not near:
        near = difflib.get_close_matches(word, originals, n=1, cutoff=_SIMILARITY)
    if not near and len(word) >= _SHORTEST:
        near = [name for name in sorted(originals) if _is_one_slip_apart(word, name)]
    return f"; did you mean `{originals[near[0]]}`?" if near else ""


def _is_one_slip_apart(word: str, name: str) -> bool:
    """Return whether one letter is wrong, missing or too many, or two neighbouring letters have changed places."""
    while word and name and word[0] == name[0]:
        word = word[1:]
        name = name[1:]
    while word and name and word[-1] == name[-1]:
        word = word[:-1]
        name = name[:-1]
    return max(len(word), len(name)) <= 1 or (len(word) == 2 and word == name[::-1])
