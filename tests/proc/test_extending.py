"""What docs/extending says is enough: its code runs, and touches no other file of the product."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.waiting import DEADLINE

from ftlaunch.notify.client import NotifierLink
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.job_spec import JobSpec, resolved
from ftlaunch.spec.notify_targets import table
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.helper_process import HelperProcesses

PAGES = Path(__file__).parents[2] / "docs/extending"


def code_of(page: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a page shows."""
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    module = ModuleType(f"shown_by_{Path(page).stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    exec(compile(code, page, "exec"), module.__dict__)
    return module


def asked(tmp_path: Path, file: str) -> JobSpec:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(f"script: {tmp_path}/train.py\nnotify: {{file: '{file}', on: [incident]}}\n")
    return resolve(str(tmp_path / "job.yaml"), (), {"run_dir": str(tmp_path)}, {})


def test_a_notify_target_that_writes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="the keys here are command, url, apprise, link"):
        asked(tmp_path, "/x")
    target = code_of("notify-target.md", monkeypatch).FileTarget
    monkeypatch.setitem(table.WAYS, target.key, target)
    with pytest.raises(SpecError, match=r"`notify\.file` is set; it must be the absolute path of a file"):
        asked(tmp_path, "notices")
    notices = tmp_path / "notices"
    spec = asked(tmp_path, str(notices))
    shown = resolved(spec)["notify"]
    assert [one["file"] for one in shown] == [str(notices)]
    notifier = NotifierLink(HelperProcesses(), spec, dict(os.environ))
    try:
        for sentence in ("rank 1 died", "rank 0 died"):
            notifier.hand({"event": "incident", "sentence": sentence})
    finally:
        outcomes = notifier.close()
    assert [(one.kind, one.target, one.error) for one in outcomes] == [("incident", str(notices), "")] * 2
    told = [json.loads(line) for line in notices.read_text().splitlines()]
    assert [one["sentence"] for one in told] == ["rank 1 died", "rank 0 died"]


class Incident(JobEvent):
    name = "incident"


class Other(JobEvent):
    name = "other"


def test_a_sink_that_counts_incidents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "incidents"
    files = FileThread(tmp_path)
    sink = code_of("event-sink.md", monkeypatch).IncidentCounter(path, files)
    for event in (Incident(), Other(), Incident()):
        sink.take(event, None)
    assert files.flush(DEADLINE)
    assert path.read_text() == "2\n"
    files.close()
