"""Says which versions of the frameworks this environment has, and which of them the adapters do not call tried yet.

    .venv-newest/bin/python tests/adapters/newest.py

Once the tests pass with a version that is not called tried, tried_versions.py is to name that version.
"""

from __future__ import annotations

from importlib import metadata

from ftlaunch_hooks.adapters.tried_versions import TRIED, untried


def main() -> None:
    """A line a framework."""
    for package, (name, newest) in TRIED.items():
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            print(f"{name}: not installed")
            continue
        new = "" if untried(name, newest, installed) is None else f"; called tried up to {newest[0]}.{newest[1]}"
        print(f"{name} {installed}{new}")


if __name__ == "__main__":
    main()
