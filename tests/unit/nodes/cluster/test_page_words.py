"""A mirror follows a page, whatever is written there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.nodes.cluster.mirrors.page_words import Changes, write
from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, read_proof, write_proof
from ftlaunch_contract.pages.words import Writer

HALF = len(Writer.RANK.value)
VALUES = st.integers(-(1 << 63), (1 << 63) - 1)
WRITES = st.lists(st.lists(st.tuples(st.integers(0, HALF - 1), VALUES), max_size=8), max_size=6)
BEAT = int(words.BEAT)


def page(directory: Path) -> Page:
    """A page of its own in every example."""
    path = page_path(directory, 0)
    path.unlink(missing_ok=True)
    create_page(path)
    return Page(path)


@given(turns=WRITES)
def test_a_mirror_follows(tmp_path_factory: pytest.TempPathFactory, turns: list[list[tuple[int, int]]]) -> None:
    real, mirror = page(tmp_path_factory.mktemp("real")), page(tmp_path_factory.mktemp("mirror"))
    changes, asked = Changes(real), list(mirror.q[HALF:])
    write(mirror, changes.collect(), 0)
    for turn in turns:
        for word, value in turn:
            real.q[word] = value
        write(mirror, json.loads(json.dumps(changes.collect())), 0)
        assert list(mirror.q[:HALF]) == list(real.q[:HALF])
        assert list(mirror.q[HALF:]) == asked, "the half of what is asked is not the rank's"
    assert changes.collect() == [], "nothing has changed since"
    real.close()
    mirror.close()


def test_only_what_has_changed_is_told(tmp_path: Path) -> None:
    one = page(tmp_path)
    changes = Changes(one)
    assert sum(count for _, _, count in changes.collect()) == HALF, "all of them at first"
    one.q[int(words.STEP)] = 7
    one.q[HALF] = 7  # not the rank's
    assert changes.collect() == [(int(words.STEP), 7)]
    assert changes.collect() == []
    one.close()


def test_the_heartbeat_is_moved_to_the_mirrors_clock(tmp_path: Path) -> None:
    mirror = page(tmp_path)
    write(mirror, [(BEAT, 5_000)], -2_000)
    assert mirror.beat_ns == 3_000
    write(mirror, [(BEAT, 0)], 9)
    assert mirror.beat_ns == 0, "0 is no time"
    mirror.close()


@pytest.mark.parametrize(
    "change",
    [
        (HALF, 1),
        (-1, 1),
        ("1", 1),
        (1, "1"),
        (1, 0.5),
        (1, None),
        (1, 1 << 63),
        (BEAT, (1 << 63) - 1),
        (1,),
        (1, 2, 0),
        (1, 2, -1),
        (1, 2, "3"),
        ("1", 2, 3),
        (-1, 1, 2),
        (HALF - 1, 1, 2),
        (1, 2, 3, 4),
    ],
)
def test_what_is_no_change_of_a_word_is_refused(tmp_path: Path, change: tuple[object, ...]) -> None:
    mirror = page(tmp_path)
    before = list(mirror.q)
    with pytest.raises(ValueError, match=r"."):
        write(mirror, [change], 1)  # type: ignore[list-item]
    assert list(mirror.q) == before
    mirror.close()


def test_what_the_steps_made_again_have_shown_travels(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "mirror").mkdir()
    real, mirror = page(tmp_path / "real"), page(tmp_path / "mirror")
    changes = Changes(real)
    write(mirror, changes.collect(), 0)
    proof = Proof(ProofVerdict.DIFFERENT, 12, 2, 3, ProofPart.PARAMETER, 0.5, -0.25, 7)
    write_proof(real, proof)
    write(mirror, json.loads(json.dumps(changes.collect())), 0)
    assert read_proof(mirror) == proof


def test_the_first_look_at_a_page_takes_little_room(tmp_path: Path) -> None:
    one = page(tmp_path)
    told = json.dumps(Changes(one).collect(), separators=(",", ":"))
    assert len(told) < 400, "two thousand nodes of eight ranks send this at once"
    (tmp_path / "mirror").mkdir()
    mirror = page(tmp_path / "mirror")
    mirror.q[3] = mirror.q[100] = 7
    write(mirror, json.loads(told), 0)
    assert list(mirror.q[:HALF]) == list(one.q[:HALF])
    one.close()
    mirror.close()
