"""Which of the checkpoints that a Trainer has written can be gone on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.packages import require

require("transformers", reason="Transformers is not installed (make frameworks)")


def write(home: Path, step: int, *, model: bytes = b"tensors", random: bool = True, state: str | None = None) -> None:
    directory = home / f"checkpoint-{step}"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(model)
    if random:
        (directory / "rng_state_0.pth").write_bytes(b"numbers")
    (directory / "trainer_state.json").write_text(state or json.dumps({"global_step": step, "max_steps": 200}))


def newest(home: Path, *, whole: bool = True) -> int | None:
    from ftlaunch_hooks.adapters.transformers import own_checkpoints

    found = own_checkpoints.newest(str(home), whole=whole)
    return None if found is None else found.step


@pytest.mark.long
def test_the_newest_is_that_of_the_last_step_and_complete(tmp_path: Path) -> None:
    from ftlaunch_hooks.adapters.transformers import own_checkpoints

    assert newest(tmp_path / "none") is None
    write(tmp_path, 8)
    write(tmp_path, 100)
    write(tmp_path, 110, random=False)
    write(tmp_path, 120, model=b"")
    write(tmp_path, 130, state='{"global_step": 1')
    (tmp_path / "checkpoint-140").mkdir()
    (tmp_path / "checkpoint-150").touch()
    (tmp_path / "checkpoint-160-best").mkdir()
    assert newest(tmp_path) == 100
    assert newest(tmp_path, whole=False) == 110
    assert own_checkpoints.incomplete(str(tmp_path), 100) == ["checkpoint-140", "checkpoint-130", "checkpoint-120"]
