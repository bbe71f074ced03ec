"""`python -m ftlaunch.views.report_page RUN_DIR [FILE]`: write the page of a run dir; default `RUN_DIR/report.html`."""

from __future__ import annotations

import sys
from pathlib import Path

from ftlaunch.views.report_page.data import NoEvents
from ftlaunch.views.report_page.render import NAME, write_page


def main(argv: list[str]) -> int:
    """Write the page and return the exit code; an error is one sentence on stderr and exit code 1."""
    run_dir = Path(argv[0])
    path = Path(argv[1]) if len(argv) > 1 else run_dir / NAME
    try:
        write_page(run_dir, path)
    except OSError as error:
        sys.stderr.write(f"{error.filename or path}: {error.strerror or error}\n")
        return 1
    except NoEvents as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
