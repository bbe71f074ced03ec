"""What is written into a page is read from it, and nothing else changes."""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch_contract.pages import loss_record, replica_record
from ftlaunch_contract.pages.descriptors import BoolWord, FloatWord, IntWord, ReadEnum, ReadInt, SecondsWord
from ftlaunch_contract.pages.loss_record import Bad, LossFault
from ftlaunch_contract.pages.page import Page, create_page
from ftlaunch_contract.pages.replica_record import ReplicaDigest
from ftlaunch_contract.pages.words import WORDS

WORD = st.integers(-(2**63), 2**63 - 1)
STEP = st.integers(1, 2**31 - 1)
DOUBLE = st.floats(allow_nan=False)
VALUES: dict[type, st.SearchStrategy[Any]] = {
    IntWord: WORD,
    BoolWord: st.booleans(),
    SecondsWord: st.floats(0, 2**31),
    FloatWord: DOUBLE,
}
ATTRIBUTES = {name: kind for name, kind in vars(Page).items() if type(kind) in VALUES}
READ_ONLY = {name for name, kind in vars(Page).items() if type(kind) in (ReadInt, ReadEnum)}


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with tempfile.TemporaryDirectory() as directory:
        create_page(Path(directory) / "page")
        page = Page(Path(directory) / "page")
        yield page
        page.close()


def test_every_kind_of_attribute_is_tried() -> None:
    assert {type(kind) for kind in ATTRIBUTES.values()} == set(VALUES)
    assert all(inspect.getdoc(vars(Page)[name]) for name in {*ATTRIBUTES, *READ_ONLY})


@given(st.data())
def test_an_attribute_is_one_word(page: Page, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ATTRIBUTES)))
    value = data.draw(VALUES[type(ATTRIBUTES[name])])
    page.format()
    before = list(page.q)
    setattr(page, name, value)
    if isinstance(ATTRIBUTES[name], SecondsWord):
        assert math.isclose(getattr(page, name), value, abs_tol=1e-9)
    else:
        assert getattr(page, name) == value
    assert sum(page.q[at] != before[at] for at in range(WORDS)) <= 1


@pytest.mark.parametrize("name", sorted(READ_ONLY))
def test_what_is_written_with_other_words_cannot_be_set_alone(page: Page, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(page, name, 1)


@given(st.builds(Bad, st.sampled_from(LossFault), STEP, DOUBLE, WORD, WORD, DOUBLE, WORD, WORD))
def test_a_bad_loss_is_told_as_it_was(page: Page, bad: Bad) -> None:
    page.begin(0, 1, 1)
    loss_record.write_losses(page, bad)
    assert loss_record.read_losses(page) == [bad]


DIGEST = st.builds(ReplicaDigest, STEP, st.integers(0, 2**12 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))


@given(st.lists(DIGEST, unique_by=lambda told: told.key))  # an attempt digests a part once a step
def test_the_newest_digests_are_told_as_they_were(page: Page, digests: list[ReplicaDigest]) -> None:
    page.begin(0, 1, 1)
    for number, told in enumerate(digests):
        replica_record.write_digest(page, number, told)
    newest = {told.key: told.digest - (told.digest >> 63 << 64) for told in digests[-8:]}
    assert replica_record.read_digests(page) == newest
    assert {(replica_record.step_of(key), replica_record.index_of(key)) for key in newest} == {
        (told.step, told.part) for told in digests[-8:]
    }
