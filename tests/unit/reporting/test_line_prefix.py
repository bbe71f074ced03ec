"""What comes before the lines of a rank on the terminal, made of a template of the user's."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from ftlaunch.reporting.sinks import line_prefix
from ftlaunch.spec.resolve import resolve

NAMED = {"module": "true"}  # a module is not looked for before the job starts
TEMPLATE = "${hostname}:${role_name}:${local_rank}:${rank}: "


@pytest.mark.parametrize(
    ("nodes", "hosts", "rank", "prefix"),
    [
        (1, [], 3, f"{socket.gethostname()}:default:3:3: "),
        (2, ["a", "b"], 1, "a:default:1:1: "),
        (2, ["a", "b"], 5, "b:default:1:5: "),
    ],
)
def test_each_macro_is_the_ranks(nodes: int, hosts: list[str], rank: int, prefix: str) -> None:
    flags = {
        **NAMED, "nproc_per_node": "4", "nnodes": f"{nodes}", "rdzv_endpoint": "a:29400",
        "log_line_prefix_template": TEMPLATE,
    }  # fmt: skip
    spec = resolve("train", [], flags, {})
    whole_job = replace(spec, launch=replace(spec.launch, nproc=spec.launch.nproc * nodes))
    assert line_prefix(whole_job, rank, hosts) == prefix


def test_what_is_no_macro_stays_as_it_is() -> None:
    spec = resolve("train", [], {**NAMED, "log_line_prefix_template": "$rank ${other} $$5 100$ "}, {})
    assert line_prefix(spec, 0, []) == "0 ${other} $5 100$ "


@pytest.mark.parametrize("name", ["PET_LOG_LINE_PREFIX_TEMPLATE", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"])
def test_variables_set_it_and_the_option_wins(name: str) -> None:
    variables = {name: "${rank}>"}
    assert resolve("train", [], NAMED, variables).launch.log_line_prefix_template == "${rank}>"
    flags = {**NAMED, "log_line_prefix_template": "${rank}|"}
    assert resolve("train", [], flags, variables).launch.log_line_prefix_template == "${rank}|"
