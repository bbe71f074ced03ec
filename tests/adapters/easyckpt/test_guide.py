"""The guide's lines are those with which the job is tested, and its one change is the whole change."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.harness import JOBS

GUIDE = (Path(__file__).parents[3] / "docs/guide/megatron.md").read_text()


def test_the_lines_stand_in_the_job() -> None:
    found = re.search(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    assert found is not None
    job = {line.strip() for line in (JOBS / "megatron_gpt.py").read_text().splitlines()}
    lines = [line.strip() for line in found[1].splitlines() if line.strip()]
    assert [line for line in lines if line not in job] == []


def test_the_change_makes_the_one_column_the_other() -> None:
    found = re.search(r"'s/(\S+)/(\S+)/'", GUIDE)
    assert found is not None
    rows = re.findall(r"^\| .* \| `(.*)` \| `(.*)` \|$", GUIDE, re.MULTILINE)
    assert len(rows) == 3
    for before, after in rows:
        assert re.sub(found[1], found[2], before) == after
