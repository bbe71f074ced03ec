"""A checkpoint's writer dies before any of its file operations: the newest checkpoint is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.checkpoints import common, image

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.checkpoint.tensor_file import whole_chunk

# Saves step 2 in children, each killed one file operation later than the one before, and after each looks
# at what is there. Audit events come before the operation they name.
CRASHES = """
import os, shutil, signal, sys
from pathlib import Path
from ftlaunch_contract.checkpoint import layout, retention, verify, writer

root = Path(sys.argv[1])
slot = root / "slot"

def save(step):
    target = writer.SaveTarget(root / "checkpoints", step, "interval", "net", 2)
    writer.prepare(target)
    for rank in (0, 1):
        writer.write_shard_of(target, rank, slot if step == 2 else root / "slot1")
    writer.commit(target)
    for _ in retention.retire(root / "checkpoints", 1):
        pass

OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "mmap.__new__")

def child(last):
    count = 0
    def operation(event, arguments):
        nonlocal count
        if event in OPERATIONS:
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(operation)
    save(2)
    os._exit(0)

save(1)
last, deaths = 0, 0
while True:
    last += 1
    pid = os.fork()
    if not pid:
        child(last)
    if os.waitpid(pid, 0)[1] == 0:
        break
    deaths += 1
    [(newest, directory), *_] = layout.list_iterations(root / "checkpoints")
    verify.verify(directory)
    tracked = int((root / "checkpoints" / layout.TRACKER).read_text())
    assert tracked in (1, 2), tracked
    if newest == 2:  # start over with step 1
        shutil.rmtree(root / "checkpoints")
        save(1)
print(deaths)
"""


@pytest.mark.long
def test_after_a_crash_at_any_point_the_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    for name, step in (("slot1", 1), ("slot", 2)):
        (tmp_path / name).mkdir()
        for group in layout.GROUPS:
            os.close(image(tmp_path / name / f"{group}.safetensors", {whole_chunk(group, "U8", (9,)): bytes(9)}))
        (tmp_path / name / layout.COMMON).write_bytes(common(step))
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, tmp_path], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25
    assert [step for step, _ in layout.list_iterations(tmp_path / "checkpoints")] == [2]
    verify.verify(tmp_path / "checkpoints" / "iteration_0000002")
