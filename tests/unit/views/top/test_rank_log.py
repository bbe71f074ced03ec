"""The log of a rank in `ftctl top`: of the newest attempt of the newest run."""

from __future__ import annotations

from pathlib import Path

from tests.support.run_dirs import at, log, run_dir, started

from ftlaunch.history.runs import load
from ftlaunch.views.top.rank_log import RankLog


def test_a_job_that_was_started_again_shows_what_its_newest_run_prints(tmp_path: Path) -> None:
    """Attempts count from 0 in each run, and share logs. Tried: the highest number is of the first run."""
    first = [*started(), at(20, "attempt_started"), at(30, "job_finished", code=0)]
    again = [at(100, "job_started", job_id="j", ranks=2, attempt=1), at(101, "attempt_started", attempt=0)]
    run = run_dir(tmp_path, [*first, *again])
    log(run, 0, 1, "of the first run\nof the second run\n")
    log(run, 1, 1, "of the first run\n")
    begun = '{"t": %s, "sizes": {"0": 0, "1": 17}, "begins": "attempt"}\n' % (1_790_000_000 + 100.5)
    (run / "logs/attempt_0/marks.0.jsonl").write_text(begun)
    shown, path = RankLog(load(run), 1), run / "logs/attempt_0/rank_1.log"
    assert list(shown.read()) == [f"--- attempt 0: {path}, the last 18 bytes", "of the second run"]
    with path.open("a") as file:
        file.write("and more\n")
    assert list(shown.read()) == ["and more"]
