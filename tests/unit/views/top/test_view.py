"""What `ftctl top` shows of a job: ranks in order, and sentences."""

from __future__ import annotations

from typing import Any

from ftlaunch.views.top.view import JobPast, Picture, RankLayout, rank_rows, summary


def rank(number: int, step: int = 10, **more: Any) -> dict[str, Any]:
    plain = {"pid": 100 + number, "alive": True, "phase": "train", "seen": 0, "beat_age": 0.1, "step_seconds": 0.5}
    return {"rank": number, "step": step, **plain, **more}


def picture(*ranks: dict[str, Any], **more: Any) -> Picture:
    status = {
        "state": "running", "attempt": 2, "restarts_left": 1, "max_restarts": 3, "in_memory": 9, "committed": -1,
        "ranks": list(ranks),
    }  # fmt: skip
    return Picture("j", status=status, **more)


def test_the_worst_ranks_come_first() -> None:
    ranks = [
        rank(0), rank(1, step=7), rank(2, beat_age=30.0), rank(3), rank(4, alive=False), rank(5, step=9),
        rank(6, beat_age=60.0),
    ]  # fmt: skip
    rows = rank_rows(picture(*ranks, waited_for=frozenset({3})))
    assert [row.rank for row in rows] == [4, 6, 2, 1, 3, 0, 5]
    assert [row.note for row in rows] == ["ended", "no beat", "no beat", "3 behind", "waited for", "", ""]


def test_a_long_step_is_no_silence() -> None:
    [row] = rank_rows(picture(rank(0, beat_age=50.0, step_seconds=20.0)))
    assert (row.note, row.beat, row.step_time) == ("", "50 s", "20 s")


def test_a_rank_that_has_not_come_to_beat_shows_no_numbers_of_it() -> None:
    [row] = rank_rows(picture(rank(0, step=-1, beat_age=None, step_seconds=None)))
    assert (row.step, row.phase, row.beat, row.step_time, row.memory, row.note) == ("-", "-", "-", "-", "-", "")


def test_steps_of_a_script_without_attach_are_those_that_were_seen() -> None:
    seen = picture(rank(0, step=-1, seen=4), rank(1, step=-1, seen=5))
    assert [row.step for row in rank_rows(seen)] == ["4 seen", "5 seen"]
    assert summary(seen)[1].startswith("step 4; ")


def test_lines_fit_eighty_columns_and_command_no_terminal() -> None:
    long = rank(1023, step=123_456_789, phase="checkpoint", beat_age=35999.0, step_seconds=600.0, pid=4_194_304)
    shown = picture(long, memory={1023: 999 << 30}, free=0)
    [row] = rank_rows(shown)
    layout = RankLayout([row], several=False, width=78)  # beside the mark of the chosen one
    assert len(layout.line(row)) <= 78
    assert layout.line(row).index("no beat") == layout.head().index("note")
    [odd] = rank_rows(picture(rank(0, phase="\x1b[31m")))
    assert "\x1b" not in RankLayout([odd], several=True, width=None).line(odd)
    assert RankLayout([], several=True, width=78).head() == "note"


def test_columns_give_way_to_a_long_note() -> None:
    """Taken out by hand: with all columns of a job of several nodes "waited for" is cut."""
    nodes = [{"place": 0, "host": "a", "ranks": [0, 1], "silent_for": 0.1}]
    late = rank(1, step=3, beat_age=300.0)
    shown = picture(rank(0, step=15), late, nodes=nodes, waited_for=frozenset({1}))
    rows = rank_rows(shown)
    note = "no beat, 12 behind, waited for"
    assert rows[0].note == note
    for width, gone in ((80, {"pid", "memory"}), (78, {"pid", "memory", "step time"}), (None, set())):
        layout = RankLayout(rows, several=True, width=width)
        assert layout.line(rows[0]).endswith(note)
        assert width is None or max(map(len, map(layout.line, rows))) <= width
        assert {name for name in ("rank", "node", "step time", "memory", "pid") if name not in layout.head()} == gone


def test_the_job_in_sentences() -> None:
    ranks = rank(0), rank(1, alive=False), rank(2, beat_age=None), rank(3)
    nodes = [
        {"place": 0, "host": "a", "ranks": [0, 1], "silent_for": 0.1},
        {"place": 1, "host": "b", "ranks": [2, 3], "silent_for": 3.0},
        {"place": None, "host": "c", "ranks": [], "silent_for": 0.2},
    ]
    shown = picture(*ranks, pace=2.5, memory={0: 1 << 30}, free=2 << 30, nodes=nodes)
    assert summary(shown) == [
        "job j: running, attempt 2, 1 of 3 restarts left",
        "step 10, 2.5 steps/s; in memory: 9; on storage: -",
        "4 ranks: 2 train, 1 ended, 1 starting; memory 1.0 GiB, 2.0 GiB free here",
        "2 nodes with ranks, 1 without; longest unheard: node 1 (b), 3.0 s",
    ]
    assert [row.node for row in rank_rows(shown)] == [0, 0, 1, 1]
    past = JobPast(7200.0, 1, 0.9712)
    assert summary(picture(rank(0), past=past))[3] == "running for 2 h 0 min; 1 incident; goodput 97.1%"
    past = JobPast(1.0, 0, None)
    assert summary(picture(rank(0), past=past))[3] == "running for 1.0 s; no incidents"
    assert ", 20 s a step;" in summary(picture(rank(0), pace=0.05))[1]


def test_a_job_that_does_not_answer_has_one_sentence() -> None:
    assert summary(Picture("j", silence="it is\x1b gone")) == ["job j: it is\\x1b gone"]
    assert summary(Picture("j", silence="gone", ended="done (exit code 0)")) == ["job j: done (exit code 0)"]
    assert rank_rows(Picture("j")) == []
