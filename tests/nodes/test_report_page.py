"""A job of several nodes has one page: the head writes it, into the run dir that all of them share."""

from __future__ import annotations

import json
import re

import pytest
from tests.support.agents import NodesJob


@pytest.mark.long
def test_the_head_writes_the_page_of_all_nodes(nodes: NodesJob) -> None:
    nodes.env["FAULT"] = "sigkill 3 12"
    nodes.begin("--report-page")
    assert nodes.codes() == [0, 0], nodes.transcript
    said = [nodes.said(number) for number in range(2)]
    assert sum(f"the report for a browser is {nodes.run_dir}/report.html" in text for text in said) == 1
    text = (nodes.run_dir / "report.html").read_text()
    [told] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    data = json.loads(told)
    assert (data["job"]["state"], data["job"]["ranks"]) == ("finished", 4)
    places = sorted(place for row in data["nodes"]["rows"] for *_, place in row["stays"] if place >= 0)
    assert places == [0, 1]
    [incident] = data["incidents"]
    assert (incident["rank"], incident["kind"]) == (3, "killed")
    assert {"detecting", "killing", "loading", "first step"} <= {name for name, _ in incident["phases"]}
    nodes.assert_clean()
