"""How the console blocks of a page are read, and how what they show is compared."""

from __future__ import annotations

import pytest
from tests.support import console_blocks
from tests.support.console_blocks import blocks, joined, pattern

PAGE = """
<!-- file: train.py -->
```python
print(1)
```

<!-- with: job.yaml = configs/train_gpt.yaml -->
```console
$ ftlaunch \\
    train.py
step 10
$ ftctl report
```

<!-- second terminal -->
```console
$ ftctl stop
```

```console
stopped
```

1. In a list:

    <!-- not run: needs a cluster,
         and two machines -->
    ```console
    $ sbatch job.sh
    ```

<!-- until Ctrl-C -->
```console
$ ftctl dashboard
```
"""


def test_a_page_is_read_block_by_block(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(console_blocks, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    file, first, second, more, cluster, last = blocks(page)
    assert (file.kind, file.comments["file"], file.text) == ("python", "train.py", "print(1)\n")
    assert [(one.line, one.shown) for one in first.commands] == [
        ("ftlaunch \\\n    train.py", "step 10"),
        ("ftctl report", ""),
    ]
    assert first.comments["with"] == "job.yaml = configs/train_gpt.yaml"
    assert "second terminal" in second.comments
    assert (more.commands, more.more) == ((), "stopped")
    assert "until Ctrl-C" in last.comments
    assert (cluster.reason, cluster.commands[0].line) == ("needs a cluster, and two machines", "sbatch job.sh")
    assert first.place == "page.md:9"


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ("step 10: loss 0.25", "step 200: loss 1,000.125"),
        ("after 278 ms", "after 1.3 s"),
        ("rank  pid\n  0   17", "rank    pid\n  0 123456"),
        ("saved to ...\ndone", "saved to /a/b\ndone"),
        ("a\n...\nb", "a\nb"),
        ("a\n...\nb", "a\n1\n2\nb"),
    ],
)
def test_what_differs_from_run_to_run_may_differ(shown: str, output: str) -> None:
    assert pattern(shown).fullmatch(joined(output))


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ("done; 0 of 3 restarts used", "done; none of 3 restarts used"),
        ("the same", "the same and more"),
        ("a\n...\nb", "a\n1\n2"),
        ("after 278 ms", "after a while"),
        ("rank 1 was killed by SIGKILL", "rank 1 was killed by SIGTERM"),
    ],
)
def test_what_is_said_may_not_differ(shown: str, output: str) -> None:
    assert not pattern(shown).fullmatch(joined(output))
