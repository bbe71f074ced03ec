"""Says whether pip's index has a newer torch than those with which the tests were run, as docs/guide/install.md tells.

    .venv/bin/python scripts/setup/newest_torch.py

The script only informs: the exit code is 0 also if there is a newer torch, or if the index does not answer.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path("docs/guide/install.md")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60

_ROW = re.compile(r"^\| 3\.\d+\.\d+ \| (\d+(?:\.\d+)*)", re.MULTILINE)
_ANSWER = re.compile(r"^torch \((\d+(?:\.\d+)*)[^)]*\)$", re.MULTILINE)


def main() -> int:
    """Ask the index, and say what it has."""
    tested = newest_of_table((ROOT / PAGE).read_text(encoding="utf-8"))
    print(sentence(tested, ask_pip()), flush=True)
    return 0


def ask_pip() -> str:
    """Return the newest version that fits this Python; empty if the index does not answer."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    return newest_of_answer(done.stdout)


def newest_of_answer(text: str) -> str:
    """Return the version that `pip index versions torch` names first; empty if it names none."""
    found = _ANSWER.search(text)
    return found[1] if found else ""


def newest_of_table(page: str) -> str:
    """Return the newest torch in the page's table of versions that were tried."""
    return max(_ROW.findall(page), key=_numbers)


def sentence(tested: str, available: str) -> str:
    """Return a sentence about the newest torch that was tried, and the newest that is available."""
    if not available:
        return f"cannot tell whether there is a newer torch than {tested}: pip's index does not answer"
    if _numbers(available) > _numbers(tested):
        return (
            f"torch {available} is there, and {PAGE} tells of none newer than {tested}: try it with"
            " `make test-newest-torch`, and add a row"
        )
    return f"the newest torch is {available}, and the tests were run with {tested}"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    sys.exit(main())
