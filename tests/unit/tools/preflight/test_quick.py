"""What a node checks before it takes part in a job."""

from __future__ import annotations

import resource

import pytest

from ftlaunch.spec.resolve import resolve
from ftlaunch.tools.preflight import machine, quick


def test_what_is_not_ok_is_a_clause_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = resolve("json", [], {"module": "true", "nproc_per_node": "2", "job_id": "j"}, {})
    monkeypatch.setattr(machine, "free_memory", lambda: 1 << 20)
    monkeypatch.setattr(machine, "free_room", lambda folder: 8 << 30)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    try:
        found = quick.warnings(spec)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == [
        "memory: 1.0 MiB free for 2 ranks: free some, or start fewer ranks: each wants 300 MiB for torch alone",
        "limits: 500 open files: DataLoader workers want more: ulimit -n 65536",
    ]
