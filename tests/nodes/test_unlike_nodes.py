"""Nodes that would train something else than the others, or write elsewhere, are turned away; nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.agents import NodesJob
from tests.support.harness import TINY


@pytest.mark.slow
def test_a_node_with_another_script_or_another_run_dir_is_refused(nodes: NodesJob, tmp_path: Path) -> None:
    """The second has the token, but a run dir of its own. Taken out: both stand by, and the job is none the wiser."""
    script, mine = tmp_path / "copy" / TINY.name, tmp_path / "mine"
    shutil.copytree(TINY.parent, script.parent, ignore=shutil.ignore_patterns("__pycache__"))
    nodes.script, text = script, script.read_text()
    nodes.env |= {"FTLAUNCH_TOKEN": "a token that is long enough", "FAULT": "deaf 3 12"}
    nodes.begin("--hang-timeout", "100s")
    nodes.wait_held(12)
    speaker = nodes.speaker
    script.write_text(text + "# another one\n")
    assert nodes.agent("--no-warm").wait(60.0) == 2, nodes.transcript
    script.write_text(text)
    assert nodes.agent("--no-warm", "--run-dir", str(mine)).wait(60.0) == 2, nodes.transcript
    for number in (2, speaker):
        assert "the script is not the one with which the job was started: its digest is " in nodes.said(number)
    assert f"cannot take part: {mine} is not shared with the node of the head at 127.0.0.1" in nodes.said(3)
    assert f"{mine} is not shared with the node of the head at 127.0.0.1" in nodes.said(speaker)
    assert not nodes.events("incident")
    nodes.supervisors[0].terminate()
    assert nodes.codes()[:2] == [75, 75], nodes.transcript
    nodes.assert_clean()
