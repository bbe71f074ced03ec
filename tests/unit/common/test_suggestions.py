"""What a writer may have meant: one slip, or much alike; never a word that only shares some letters."""

from __future__ import annotations

import pytest

from ftlaunch.common.suggestions import did_you_mean

KNOWN = ("night", "gpt", "train.py", "status", "scope", "on-failure", "a")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("nigth", "night"), ("gtp", "gpt"), ("gp", "gpt"), ("gpx", "gpt"), ("trian.py", "train.py"),
        ("statsu", "status"), ("on-failur", "on-failure"), ("Status", "status"),
        ("nope", ""), ("b", ""), ("zzz", ""), ("", ""), ("nothing", ""),
    ],
)  # fmt: skip
def test_one_slip_is_understood_and_a_guess_is_not_made(word: str, meant: str) -> None:
    assert did_you_mean(word, KNOWN) == (f"; did you mean `{meant}`?" if meant else "")
