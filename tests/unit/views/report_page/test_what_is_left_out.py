"""What does not fit is counted and told; nothing is left out without a word, and nothing makes a page too large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_dirs import Timed, at, failed, log, run_dir, started

from ftlaunch.autopsy.flight_recorder import Collective, FlightRecord
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.views.report_page.data import encoded, page_data
from ftlaunch.views.report_page.render import render
from ftlaunch.views.report_page.wait_graph import wait_graph
from ftlaunch.views.report_page.words import SafeText

END = at(2000, "job_finished", code=0, restarts=1)
MOST = 5_000_000  # bytes of a page
SECRET = "hunter2hunter2"


def said(data: dict[str, Any]) -> str:
    return " ".join(data["notes"])


def test_nodes_beyond_those_drawn_are_counted(tmp_path: Path) -> None:
    """Taken out: of 2,048 nodes 64 were drawn, and nothing said so."""
    events = [at(11, "node_joined", node=n, host=f"n{n}", address="x") for n in range(2048)]
    data = page_data(run_dir(tmp_path, [*started(), *events, END]))
    assert len(data["nodes"]["rows"]) == 64
    assert "The first 64 nodes are drawn; others came 1984 times" in said(data)


def test_stays_beyond_those_drawn_are_counted(tmp_path: Path) -> None:
    events: list[Timed] = [at(11, "node_joined", node=1, host="a", address="x")]
    events += [at(12 + n, "node_placed", node=1, place=n % 2) for n in range(1500)]
    data = page_data(run_dir(tmp_path, [*started(), *events, END]))
    assert sum(len(row["stays"]) for row in data["nodes"]["rows"]) == 1000
    assert "the first 1000 stays are drawn; 501 are left out" in said(data)


def test_ranks_beyond_the_lines_are_told(tmp_path: Path) -> None:
    events = [at(20 + n, "progress", step=n, loss=[[n, 1.0]]) for n in range(20)]
    data = page_data(run_dir(tmp_path, [*started(), *events, END]))
    assert len(data["steps"]["loss"]["lines"]) == 11
    assert "of the first 11 ranks" in said(data)


def waiting(rank: int, name: str = "") -> RankDump:
    """A rank that waits in a collective, at a line of its own; name: of the collective, where a recorder names it."""
    frames = ['"/x/site-packages/torch/distributed/distributed_c10d.py", line 2 in all_reduce',
              f'"/job/train.py", line {rank + 1} in work']  # fmt: skip
    stack = "Current thread 0x00007f (most recent call first):\n" + "".join(f"  File {frame}\n" for frame in frames)
    flight = FlightRecord((Collective("0", 5, name, "[]", over=False),)) if name else None
    return RankDump(rank=rank, stack=stack, flight=flight)


def test_a_partner_is_drawn_however_many_groups_there_are() -> None:
    """Taken out: of more than twelve groups the arrow to the partner led from the culprit to itself."""
    dumps = {rank: waiting(rank) for rank in range(21)} | {0: waiting(0, "all_reduce"), 20: waiting(20, "broadcast")}
    graph = wait_graph(0, dumps, SafeText([]))
    [edge] = [edge for edge in graph["edges"] if edge[0] == 0]
    assert 20 in graph["groups"][edge[1]]["ranks"]
    assert len(graph["groups"]) == 13
    assert graph["undrawn"] == 8


def test_a_kind_is_bounded_and_masked_where_it_is_only_counted(tmp_path: Path) -> None:
    """Taken out: a page of eight megabytes, with the secret in clear."""
    events = started()
    for n in range(200):
        kind = f"token={SECRET} {n} " + "x" * 200_000 if n < 20 else "killed"
        events += failed(100 + 5 * n, n, kind=kind, since_progress=0.0)
    data = page_data(run_dir(tmp_path, [*events, END]))
    assert len(encoded(data)) < 500_000
    assert SECRET not in encoded(data).decode()
    assert "token=***" in encoded(data).decode()


@pytest.mark.long
@pytest.mark.parametrize(
    "letter", [pytest.param("<", marks=pytest.mark.slow), pytest.param("\x00", marks=pytest.mark.slow), "\U0001f525"]
)
def test_the_page_stays_small_whatever_the_journal_says(tmp_path: Path, letter: str) -> None:
    """Each text as long as it can be, of the letters that grow most, and each list as full as it can be."""
    long = letter * 5000
    head = dict.fromkeys(("job_id", "host", "checkpoint_dir"), long)
    events = started(8, **head, command=[long])
    events += [at(11, "node_joined", node=n, host=f"{n}{long}", address="x") for n in range(64)]
    events += [at(12 + n, "node_placed", node=n % 64, place=n) for n in range(1500)]
    for n in range(2000):
        now = 3000 + 20 * n
        pairs = [[rank, -1.23456e14 + n * 1e9] for rank in range(8)]
        events.append(at(now, "progress", step=10**14 + n, loss=pairs, step_seconds=pairs))
        events.append(at(now + 1, "checkpoint_rejected", step=10**14 + n, why=long))
        events.append(at(now + 2, "unsound", sentence=long))
        if n % 10 == 0:
            words = dict.fromkeys(("sentence", "cause", "signature", "action", "verdict", "trace"), long)
            events += failed(now + 3, 10**14 + n, **words, kind=f"{n}{long}")
    made = run_dir(tmp_path, [*events, at(1e6, "job_failed", code=1, sentence=long)])
    for attempt in range(201):
        log(made, attempt, 1, (letter * 100 + "\n") * 600)
    assert len(render(page_data(made)).encode()) < MOST


@pytest.mark.parametrize("filler", ["\x1b[31m", "\x1b[0m\n", "\n"])
def test_an_excerpt_begins_at_a_whole_line(tmp_path: Path, filler: str) -> None:
    """What is looked at begins behind `token=`, and what is not shown follows. Taken out: the rest of the secret stood
    there in clear."""
    made = run_dir(tmp_path, [*started(), *failed(100, 5), END])
    rest = "\nthe last line\n" + filler * (15_900 // len(filler))
    log(made, 0, 1, f"token={SECRET * 20}{rest}")
    [incident] = page_data(made)["incidents"]
    assert SECRET not in json.dumps(incident)
    assert incident["log"]["lines"] == ["the last line"]


def test_a_last_line_that_is_too_long_is_told(tmp_path: Path) -> None:
    made = run_dir(tmp_path, [*started(), *failed(100, 5), END])
    log(made, 0, 1, f"token={SECRET * 9000}")
    [incident] = page_data(made)["incidents"]
    assert incident["log"]["lines"] == ["[the last line is left out: it is longer than 16000 characters]"]
